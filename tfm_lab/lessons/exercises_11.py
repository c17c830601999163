"""Exercise of notebook 11, with the wrong answers that its check must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tfm_lab.claims import Examined, Finding, Outcome, objections
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.properties import failing

PROVED, MEASURED, NOT_REPRODUCED = Examined.PROVED, Examined.MEASURED, Examined.NOT_REPRODUCED
COMPUTED = Examined.COMPUTED
HOLDS, PARTLY, FALLS_SHORT, OPEN = Outcome.HOLDS, Outcome.PARTLY, Outcome.FALLS_SHORT, Outcome.OPEN

_IDENTITY = Finding(1e-16, "identity", is_count=True)
_EXACT = Finding(1.42, "exact", is_count=True)
_SECONDS = Finding(3.0, "info")
_GAIN = Finding(0.26, "measured", 0.02, device="a CPU", reaches=0.32)
_COUNT = Finding(200.0, "measured", is_count=True, device="a CPU")


class Entry(NamedTuple):
    """One entry of a ledger, as a referee gets it."""

    name: str
    examined: Examined
    outcome: Outcome
    findings: tuple[Finding, ...]


SOUND = (
    Entry("an identity that holds", PROVED, HOLDS, (_IDENTITY,)),
    Entry("a gain that is said to fall short", MEASURED, FALLS_SHORT, (_GAIN,)),
    Entry("a count needs no error", MEASURED, HOLDS, (_COUNT,)),
    Entry("nothing was done, and that is said", NOT_REPRODUCED, OPEN, ()),
    Entry("a time beside an identity", PROVED, HOLDS, (_IDENTITY, _SECONDS)),
    Entry("arithmetic on published numbers, in part", COMPUTED, PARTLY, (_EXACT,)),
    Entry(
        "just reached",
        MEASURED,
        HOLDS,
        (Finding(0.32, "measured", 0.05, device="a CPU", reaches=0.32),),
    ),
)
UNSOUND = (
    Entry("no number at all", MEASURED, HOLDS, ()),
    Entry("proved by a stopwatch", PROVED, HOLDS, (_SECONDS,)),
    Entry("measured on an unnamed machine", MEASURED, HOLDS, (Finding(1.5, "measured", 0.1),)),
    Entry("one number without an error", MEASURED, HOLDS, (Finding(1.5, "measured", device="a GPU"),)),
    Entry("too small, and yet it holds", MEASURED, HOLDS, (_GAIN,)),
    Entry("not reproduced, and yet it holds", NOT_REPRODUCED, HOLDS, ()),
    Entry("the paper's own numbers, and yet it holds", COMPUTED, HOLDS, (_EXACT,)),
)
SEVERAL = (
    Entry(
        "the second number is the short one",
        MEASURED,
        HOLDS,
        (Finding(0.5, "measured", 0.02, device="a CPU", reaches=0.32), _GAIN),
    ),
    Entry("nothing is right", MEASURED, HOLDS, (Finding(0.1, "measured", reaches=0.2),)),
    Entry("not reproduced, with a number that says nothing", NOT_REPRODUCED, HOLDS, (Finding(1.0, "measured"),)),
)

Answer = Callable[[Examined, Outcome, Sequence[Finding]], Iterable[str]]


def wrong_wants_evidence_for_everything(examined: Examined, outcome: Outcome, findings: Sequence[Finding]) -> set[str]:
    return objections(examined, outcome, findings) | ({"no evidence"} if not findings else set())


def wrong_looks_at_the_first(examined: Examined, outcome: Outcome, findings: Sequence[Finding]) -> set[str]:
    return objections(examined, outcome, findings[:1])


def wrong_error_for_counts(examined: Examined, outcome: Outcome, findings: Sequence[Finding]) -> set[str]:
    bare = any(item.kind == "measured" and item.error is None for item in findings)
    return objections(examined, outcome, findings) | ({"no error"} if bare else set())


def wrong_short_is_short(examined: Examined, outcome: Outcome, findings: Sequence[Finding]) -> set[str]:
    short = any(item.reaches is not None and item.value < item.reaches for item in findings)
    return objections(examined, outcome, findings) | ({"falls short"} if short else set())


def wrong_any_number_proves(examined: Examined, outcome: Outcome, findings: Sequence[Finding]) -> set[str]:
    return objections(examined, outcome, findings) - {"no proof"}


def wrong_exact_is_enough(examined: Examined, outcome: Outcome, findings: Sequence[Finding]) -> set[str]:
    return objections(examined, outcome, findings) - {"only computed"}


def _same_as(cases: tuple[Entry, ...]) -> Callable[[Any], str]:
    def complaint(answer: Any) -> str:
        def one(case: Entry) -> str:
            raised, right = set(answer(*case[1:])), objections(*case[1:])
            if raised == right:
                return ""
            missing, extra = sorted(right - raised), sorted(raised - right)
            told = [f"it misses {', '.join(missing)}"] if missing else []
            return " and ".join(told + ([f"{', '.join(map(repr, extra))} is no fault of it"] if extra else []))

        return failing(cases, one)

    return complaint


def _behaviour(answer: Any) -> list[list[str]]:
    return [sorted(answer(*case[1:])) for case in (*SOUND, *UNSOUND, *SEVERAL)]


REFEREE = Exercise(
    name="11.objections",
    title="be the referee",
    task="Write <code>objections(examined, outcome, findings)</code>: the set of objections to one entry of the "
    "ledger. <code>examined</code> and <code>outcome</code> are members of <code>Examined</code> and "
    "<code>Outcome</code>; each of the <code>findings</code> has <code>value</code>, <code>kind</code>, "
    "<code>error</code> (or None), <code>is_count</code>, <code>device</code> (or empty) and <code>reaches</code> (or "
    "None). The seven objections:<ul><li><code>not asked</code>: not reproduced, and the outcome is anything but "
    "open;</li><li><code>no evidence</code>: examined, without a finding;</li><li><code>no proof</code>: proved, with "
    "findings of which none is of kind exact or identity;</li><li><code>only computed</code>: computed from published "
    "numbers, and the outcome is holds;</li><li><code>no device</code>: a finding of kind measured names "
    "none;</li><li><code>no error</code>: a finding of kind measured has none and is no count;</li><li><code>falls "
    "short</code>: the outcome is holds, and a value is below what it has to reach.</li></ul>",
    difficulty=2,
    importance=2,
    minutes=12,
    reread="The ledger",
    hints=(
        "Four objections look at the entry as a whole, three at every single finding.",
        "First decide the entry: <code>if examined is Examined.NOT_REPRODUCED: ... elif not findings: ... elif "
        "...</code>. Then one loop over the findings.",
        "In the loop: <code>if item.kind == 'measured' and not item.device: raised.add('no device')</code>, and two "
        "more of that form. <code>falls short</code> also asks whether the outcome is <code>Outcome.HOLDS</code>.",
    ),
    solution=objections,
    explanation="A gap is no fault as long as it is admitted: a claim that was not reproduced needs no number, and a "
    "gain below the paper's is fine where the entry says that it falls short.",
    properties=(
        Property("an honest entry raises no objection", _same_as(SOUND)),
        Property("each fault alone is found", _same_as(UNSOUND)),
        Property("every finding is looked at", _same_as(SEVERAL)),
    ),
    behaviour=_behaviour,
    misconceptions=(
        Misconception(
            "It asks for evidence where nothing was done. “Not reproduced” without a number is the honest entry; a "
            "number would be the surprise.",
            wrong_wants_evidence_for_everything,
        ),
        Misconception(
            "It stops at the first finding. The weakest number of an entry decides, and it need not stand first.",
            wrong_looks_at_the_first,
        ),
        Misconception(
            "It wants an error of a count. That 200 of 200 texts are identical has no standard error.",
            wrong_error_for_counts,
        ),
        Misconception(
            "It objects to every number that stays below the paper's. Only an entry that says <em>holds</em> is wrong "
            "then; one that says <em>falls short</em> is right.",
            wrong_short_is_short,
        ),
        Misconception(
            "It takes any number for a proof. A time or a trained value shows that something happened, not that it "
            "must.",
            wrong_any_number_proves,
        ),
        Misconception(
            "It lets the paper confirm itself. Exact arithmetic on published numbers shows what they imply, not that "
            "they are true.",
            wrong_exact_is_enough,
        ),
    ),
)

EXERCISES_11 = (REFEREE,)
