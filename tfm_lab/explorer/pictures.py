"""Still pictures of what an explorer shows, for places without controls."""

from dataclasses import replace

from tfm_lab.explorer.law_picture import law_svg, law_words
from tfm_lab.explorer.reducers import Mode, current
from tfm_lab.explorer.scenes import name, scene
from tfm_lab.explorer.session import ExplorerSession
from tfm_lab.show.picture import Picture
from tfm_lab.show.svg import tree_svg


def trees_picture(session: ExplorerSession, mode: Mode) -> Picture:
    """The trees of the present target call, in another mode if need be.

    Raises:
        ValueError: if nothing is decoded yet.
    """
    picture = scene(replace(session.state, mode=mode), session.shown)
    if picture is None:
        raise ValueError("nothing is decoded yet: call decode(wait=True) first")
    return Picture(tree_svg(picture.view), picture.view.description)


def node_picture(session: ExplorerSession) -> Picture:
    """The three laws of the token after the selected node.

    Raises:
        ValueError: if nothing is decoded yet.
    """
    here = current(session.state, session.shown)
    if here is None or session.shown is None:
        raise ValueError("nothing is decoded yet: call decode(wait=True) first")
    law, after = here.facts[session.state.path].law, name(session.state.path, session.shown)
    return Picture(law_svg(law, after), f"After {after!r}: {law_words(law) if law else 'nothing is drafted'}")
