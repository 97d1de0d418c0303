"""Which products need blocks of eight bits, so that a budget of perplexity holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sanderling.core.progress import Event, Progress
from sanderling.measure.perplexity import Change
from sanderling.workshop.text.decoder import HEAD, Decoder
from sanderling.workshop.text.evidence import SearchStep, TextSearch
from sanderling.workshop.text.storage import Form, fits

_SHARES = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.17, 0.2, 0.25, 0.32, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

Try = Callable[[Mapping[str, Form]], Change]


def forms_of(decoder: Decoder, form: Form, guarded: Sequence[str] = ()) -> dict[str, Form]:
    """A form for every product: blocks of eight bits for the guarded and for the head, which the embedding shares.

    ``RESIDUAL_8`` is the head's as well. Of four bits, ``OFFSETS_4`` is for weights that have levels of their own.
    """
    kept = {*guarded} if form == Form.RESIDUAL_8 else {*guarded, HEAD}
    wanted = {
        product: Form.BLOCKS_8 if product.name in kept else decoder.form_of(product, form)
        for product in decoder.products
    }
    return {product.name: chosen if fits(chosen, product.depth) else Form.FLOAT for product, chosen in wanted.items()}


def search(
    decoder: Decoder, form: Form, errors: Mapping[str, float], limit: float, measure: Try, progress: Progress
) -> TextSearch:
    """Find the fewest guarded products with which the upper bound of the perplexity's change is inside ``limit``.

    Products are guarded in the order of what they lose by themselves. Along it the change falls, but for noise, so the
    place is looked for by halving.

    Args:
        decoder: the float graph.
        form: of products that are not guarded.
        errors: of each product by name, from ``local_errors``.
        limit: percent.
        measure: the change of perplexity with given forms, on texts that are not the reported ones.
        progress: told when even guarding all of them does not hold the budget.
    """
    order = sorted(errors, key=lambda name: -errors[name])
    counts = sorted({round(share * len(order)) for share in _SHARES})
    steps: list[SearchStep] = []

    def holds(count: int) -> bool:
        found = measure(forms_of(decoder, form, order[:count]))
        steps.append(SearchStep(guarded=count, change=found, held=found.percent_upper <= limit))
        progress.advance()
        return steps[-1].held

    low, high = 0, len(counts) - 1  # the answer is in counts[low : high + 1]; the last counts as the answer unseen
    while low < high:
        middle = (low + high) // 2
        if holds(counts[middle]):
            high = middle
        else:
            low = middle + 1
    guarded = counts[low]
    if guarded == len(order) and not holds(guarded):
        reason = f"{steps[-1].change.percent_upper:.2g} % at most allowed {limit:g} % with every product in eight bits"
        progress.event(Event(kind="budget-out-of-reach", subject=form.value, reason=reason))
    return TextSearch(
        form=form.value,
        order=tuple(order),
        errors=tuple(errors[name] for name in order),
        steps=tuple(steps),
        guarded=guarded,
        tokens=steps[0].change.tokens if steps else 0,
    )
