"""Past failures, replayed first: every line of guard.txt must hold."""

from kda.suite.guard import GuardLine
from kda.suite.laws import LAWS, Subject


def test_a_past_failure_stays_fixed(subject: Subject, guarded: GuardLine, kda_run):
    """A case that once broke a property does not break it again."""
    assert guarded.property in LAWS, f"guard.txt names {guarded.property}, which is no property; known: {sorted(LAWS)}"
    kda_run.replay(LAWS[guarded.property], subject, guarded.case)
