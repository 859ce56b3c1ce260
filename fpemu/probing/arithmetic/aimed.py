"""Probes that tell the specs still possible apart: operands about the places where they cut, round and stop.

A directed probe is made for one question, with few bits. Some questions take operands that have to be looked for: with
blocks of one and a D of few bits, F shows only where a product lies halfway between two numbers of D and C is all that
decides. So operands are drawn about the halves and cuts of the specs in play, the emulator answers for each spec, and
only operands that two specs answer differently are put to the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import operand_streams as streams
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.fit import Answers
from fpemu.probing.arithmetic.kinds import KINDS
from fpemu.probing.arithmetic.pool import NO_LEVEL, Formats, Pool
from fpemu.probing.arithmetic.scene import Scene

PRODUCTS = 2**18  # drawn at a time
MOST = 20_000  # operands, but no more of them
_EACH = 3  # of them asked for each spec that is told from the first
_VERIFYING = 10  # one in so many is as those that verify


def separating(answers: Answers, specs: Sequence[MmaSpec], seed: int) -> Pool:
    """Probes that some of the specs would answer other than the first of them; none where none was met."""
    rng = np.random.default_rng(seed)
    drawn = draw(answers.formats, answers.k, specs, rng, min(MOST, PRODUCTS // answers.k))
    given = Answers(answers.formats, answers.k, drawn, np.zeros(len(drawn), answers.D.dtype))
    results = given.values(specs)
    chosen: set[int] = set()
    terms = ((drawn.A != 0) & (drawn.B != 0)).sum(axis=1) + (drawn.C != 0)
    order = np.argsort(terms, kind="stable")  # the plainest first
    for result in results[1:]:
        apart = order[((result != results[0]) & ~(np.isnan(result) & np.isnan(results[0])))[order]]
        if not chosen.intersection(apart[: 4 * _EACH].tolist()):
            chosen.update(apart[:_EACH].tolist())
            chosen.update(rng.permutation(apart)[:_EACH].tolist())
    return drawn.take(np.array(sorted(chosen), np.int64))


def draw(formats: Formats, k: int, specs: Sequence[MmaSpec], rng: np.random.Generator, n: int) -> Pool:
    """About n operands of every kind, each about one of the specs."""
    made = [_verifying(specs[int(rng.integers(len(specs)))], rng, n // _VERIFYING)]
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        for kind, share in KINDS.items():
            scene = Scene.of(formats, k, specs, rng, max(1, n * share // sum(KINDS.values())))
            made.append(scene.codes(*kind(scene)))
    A, B, C = (np.concatenate(x) for x in zip(*made, strict=True))
    return Pool(A, B, C, ("aimed",) * len(C), np.full(len(C), NO_LEVEL), np.full(len(C), k), C != 0)


def _verifying(spec: MmaSpec, rng: np.random.Generator, n: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Operands of all the classes that verify a spec."""
    each, seed = max(1, n // len(streams.CLASSES)), int(rng.integers(2**63))
    drawn = [streams.operands(spec, kind, seed, 0, each, 1, 1) for kind in streams.CLASSES]
    A, B, C = (np.concatenate(x) for x in zip(*drawn, strict=True))
    return A[:, 0], B[:, 0], C[:, 0, 0]
