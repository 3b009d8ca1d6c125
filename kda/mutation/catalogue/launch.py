"""Around the kernel: strides, caches, checks."""

from __future__ import annotations

from kda.mutation.catalogue.mistake import InForward, Mistake
from kda.mutation.rewrite import Edit

__all__ = ["LAUNCH"]

GATES = "gate_domain.any_gate_is_computed_or_refused"


def _total_times(factor: str) -> Edit:
    return Edit(
        "the longest key, with which the gate domain is looked at",
        "k_max = max(_l, _h)",
        f"k_max = max(_l, _h)\ndomain = type(domain)(**{{**vars(domain), 'total': {factor} * domain.total}})",
        function="_check_values",
    )


def _check_only(gates: str) -> Edit:
    return Edit(
        "the check of the gates", "domain.check(_g, _k)", f"domain.check({gates}, _k)", function="_check_values"
    )


LAUNCH = (
    Mistake(
        "strides-assumed",
        "the launch takes every tensor for contiguous",
        "FlashInfer #3693, FLA #627, attention-gym #250",
        stage="q",
        launch=(
            Edit(
                "the dense copy of a strided tensor",
                "tensor = tensor.contiguous()",
                "tensor = tensor if tensor.is_contiguous() else "
                "tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device='meta').stride())",
                function="aligned",
            ),
        ),
        forward=InForward(("launch",)),
        law="machine.strided_views_are_as_good_as_contiguous",
        members=2,
    ),
    Mistake(
        "kernel-cached-without-its-dtype",
        "the cache of compiled kernels does not tell operand formats apart",
        "FlashInfer #4219, cuLA #43",
        launch=(
            Edit(
                "the cache of compiled kernels",
                "return _compiled(*_arguments)",
                "key = (tile.C, tile.block_DV, DK, DV, target)\n"
                "if key not in BY_SIZE:\n"
                "    BY_SIZE[key] = _compiled(*_arguments)\n"
                "return BY_SIZE[key]",
                function="compiled_kernel",
            ),
            Edit("a global", "MAX_CHANNELS = 128", "MAX_CHANNELS = 128\nBY_SIZE = {}", function=""),
        ),
        forward=InForward(("launch",)),
        law="machine.formats_may_alternate_in_one_process",
    ),
    Mistake(
        "no-state-is-any-state",
        "without an initial state the kernel starts from whatever the output buffer held",
        "tpu-inference #2408, FlashInfer #4219",
        stage="S at the start",
        launch=(
            Edit(
                "the state where none was passed",
                "initial_state = torch.zeros(_a, dtype=_t, device=_d)",
                "initial_state = buffers['final_state'].clone()",
                function="_run",
            ),
        ),
        forward=InForward(("launch",)),
    ),
    Mistake(
        "gate-domain-unchecked",
        "gates outside the domain are computed, in silence",
        "FlashInfer #5032, attention-gym #337",
        launch=(
            Edit(
                "the check of the gate domain",
                "if not domain.surely_holds(_g, _n, _k):\n    _check",
                "",
                function="_check_values",
            ),
        ),
        law="contract.the_gate_domain_is_tight",
    ),
    Mistake(
        "gate-domain-too-wide",
        "gates up to 10 % outside the domain are computed, in silence",
        "article 1.3: e^-gamma is taken to fit as long as it is below the largest number of the format",
        launch=(_total_times("1.1"),),
        law=GATES,
    ),
    Mistake(
        "gate-domain-too-narrow",
        "gates in the last tenth of the domain are refused, though they would be computed",
        "article 2.1: a lower bound of 0.9 is asked for where 0.8593 would do",
        launch=(_total_times("0.9"),),
        law=GATES,
        tokens=16,  # one deep token or a chunk of shallow ones: neither is simpler to a shrinker
    ),
    Mistake(
        "gate-domain-of-the-first-chunk",
        "only the gates of the first chunk are checked",
        "article 1.2: gamma starts anew in every chunk",
        launch=(_check_only("_g[:, :domain.C]"),),
        law=GATES,
        tokens=17,
    ),
    Mistake(
        "gate-domain-of-the-first-batch",
        "only the gates of batch 0 are checked",
        "article 4: one program for each batch and head, each with gates of its own",
        launch=(_check_only("_g[:1]"),),
        law=GATES,
        tokens=16,
        members=3,  # the gates that differ between batches are drawn, and the deep one may be in any
    ),
    Mistake(
        "positive-gate-unchecked",
        "a gate in linear space is computed as a logarithm",
        "FlashInfer #2490",
        launch=(
            Edit("the check of the sign of the gate", "if highest['g'] > 0:\n    _check", "", function="_check_values"),
        ),
        forward=InForward(("launch",)),
        law="contract.one_thing_wrong_is_refused",
    ),
    Mistake(
        "nan-unchecked",
        "a NaN among the inputs is computed",
        "FLA #1135 (values that were never meant to be read)",
        launch=(
            Edit(
                "the check for finite values",
                "if not (isfinite(_l) and isfinite(_h)):\n    _check",
                "if False:\n    _check",
                function="_check_values",
            ),
        ),
        forward=InForward(("launch",)),
        law="contract.one_thing_wrong_is_refused",
    ),
    Mistake(
        "shapes-unchecked",
        "shapes that do not fit each other are launched",
        "FLA #1106, cuLA #41",
        launch=(
            Edit(
                "the check of the shapes",
                "sizes = check_shapes(_s)",
                "sizes = Sizes(*q.shape[:3], q.shape[3], v.shape[3])",
                function="_run",
            ),
        ),
        law="contract.one_thing_wrong_is_refused",
    ),
)
