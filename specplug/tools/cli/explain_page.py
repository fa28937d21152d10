"""What the page of an explanation shows beside its tables: the answer, coloured by what drafted it, and the steps."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import cycle

from specplug.explain.explanation import BARE, LOST, OWN, Explanation
from specplug.explain.steps import Step
from specplug.tools.cli.html_report import Html

_COLOURS = ("#2a9d5c", "#2979c9", "#a04bb5", "#c98a00", "#00929b", "#c2487e")


def page_parts(explanation: Explanation) -> Iterator[Html]:
    """Yield the parts.  Everything that tokens, sources and ids say is escaped."""
    tints = zip(explanation.sources, cycle(_COLOURS), strict=False)
    styles = {source: f"background:{colour}55" for source, colour in tints}
    styles |= {OWN: "", BARE: "opacity:.6", LOST: "color:#d33;font-size:80%"}
    spans = (
        f'<span style="{styles[kind]}" title="{escape(about)}">{escape(text)}</span>'
        for text, kind, about in explanation.spans()
    )
    yield Html(f'<pre class="text">{"".join(spans)}</pre>')
    legend = (
        f'<tr><td><span style="{styles[kind]}">{escape(kind)}</span></td><td>{escape(of)}</td></tr>'
        for kind, of in explanation.legend()
    )
    yield Html(f"<table>{''.join(legend)}</table>")
    yield Html(_bars(explanation.steps))


def _bars(steps: list[Step]) -> str:
    """Return a bar for each step, as high as it was long."""
    seconds = [step.seconds or 0.0 for step in steps]
    longest = max(seconds) or 1.0
    bars = []
    for place, (step, took) in enumerate(zip(steps, seconds, strict=True)):
        about = f"step {step.step}: {1000 * took:.1f} ms, {step.batch} in the batch, {step.reason}"
        top = 60 - 60 * took / longest
        colour = _COLOURS[0] if step.accepted else "#888"
        bar = f'<rect x="{place}" y="{top:.1f}" width=".8" height="60" fill="{colour}">'
        bars.append(f"{bar}<title>{escape(about)}</title></rect>")
    return (
        f"<p>The time of each step, up to {1000 * max(seconds):.0f} ms; green where draft tokens were kept:</p>"
        f'<svg class="bars" viewBox="0 0 {len(steps)} 60" preserveAspectRatio="none">{"".join(bars)}</svg>'
    )
