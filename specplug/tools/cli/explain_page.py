"""An explanation as an HTML page that needs nothing else."""

from __future__ import annotations

from html import escape
from itertools import cycle

from specplug.explain.explanation import BARE, LOST, OWN, Explanation
from specplug.explain.steps import Step

_COLOURS = ("#2a9d5c", "#2979c9", "#a04bb5", "#c98a00", "#00929b", "#c2487e")

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; overflow-wrap: anywhere; }
pre { font: 14px/1.6 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; padding: 1rem; }
pre, svg { border: 1px solid #8888; }
span { border-radius: 2px; }
td { padding-right: 1rem; }
svg { width: 100%; height: 60px; }
"""


def page(explanation: Explanation) -> str:
    """Return the page.  Everything that tokens, sources and ids say is escaped."""
    tints = zip(explanation.sources, cycle(_COLOURS), strict=False)
    styles = {source: f"background:{colour}55" for source, colour in tints}
    styles |= {OWN: "", BARE: "opacity:.6", LOST: "color:#d33;font-size:80%"}
    text = "".join(
        f'<span style="{styles[kind]}" title="{escape(about)}">{escape(text)}</span>'
        for text, kind, about in explanation.spans()
    )
    legend = "".join(
        f'<tr><td><span style="{styles[kind]}">{escape(kind)}</span><td>{escape(of)}'
        for kind, of in explanation.legend()
    )
    verdict = "".join(f"<li>{escape(sentence)}" for sentence in explanation.verdict)
    return (
        f'<!doctype html><html lang=en><meta charset="utf-8"><title>{escape(explanation.request)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(explanation.title)}</h1><ul>{verdict}</ul><pre>{text}</pre>"
        f"<table>{legend}</table>{_bars(explanation.steps)}</html>\n"
    )


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
        f'<svg viewBox="0 0 {len(steps)} 60" preserveAspectRatio="none">{"".join(bars)}</svg>'
    )
