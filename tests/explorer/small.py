"""A small real decode for the tests of the explorer, made once; and a toy whose laws are known."""

import functools
import itertools
from dataclasses import replace

from tfm_lab.explorer.exploring import explore
from tfm_lab.explorer.records import Exploration, NodeFacts, TokenPath
from tfm_lab.explorer.settings import Settings, load
from tfm_lab.theory import MarkovWorld

SETTINGS = Settings(prompt="What is a database?", budget=6, width=2, new_tokens=6, pool=64, seed=1)


@functools.cache
def exploration(method: str = "tfm") -> Exploration:
    settings = replace(SETTINGS, method=method)
    return explore(settings, load(settings.target))


def toy_facts(world: MarkovWorld, depth: int) -> dict[TokenPath, NodeFacts]:
    """Facts of all paths up to ``depth`` tokens; the Weaver believes in the marginals of the world."""
    marginals = world.marginals(depth)
    facts = {(): NodeFacts("root", 1.0, 1.0, 1.0, 1.0, 1.0, None)}
    for length in range(1, depth + 1):
        for path in itertools.product(range(world.vocab), repeat=length):
            above = facts[path[:-1]]
            target = float(world.conditional(path[:-1])[path[-1]])
            weaver = float(marginals[length - 1, path[-1]])
            facts[path] = NodeFacts(
                str(path[-1]), weaver, weaver, target, above.weaver_path * weaver, above.target_path * target, None
            )
    return facts
