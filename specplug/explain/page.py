"""An explanation as an HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from specplug.explain.explanation import Explanation, Step, Token

COLOURS = ("#2a9d5c", "#2979c9", "#a04bb5", "#c98a00", "#00929b", "#c2487e")
"""Of the sources, in the order of the accepted tokens; more begin again."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
:root { color-scheme: light dark; --faint: #8888; --lost: #d33; }
h1 { font-size: 1.2rem; overflow-wrap: anywhere; }
pre { font: 14px/1.6 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; padding: 1rem;
  border: 1px solid var(--faint); border-radius: 4px; }
pre span { border-radius: 2px; }
td, th { text-align: left; padding: 0 1rem 0 0; font-weight: normal; }
th, .plain { opacity: .6; }
.lost { color: var(--lost); font-size: 11px; vertical-align: super; cursor: help; }
svg { width: 100%; height: 60px; border-bottom: 1px solid var(--faint); }
"""


def page(explanation: Explanation) -> str:
    """Return the page.  What tokens, sources and ids say is escaped."""
    colours = {source: COLOURS[place % len(COLOURS)] for place, source in enumerate(explanation.sources)}
    steps = explanation.steps
    count = sum(len(step.tokens) for step in steps)
    owner = f", tenant {explanation.tenant}" if explanation.tenant else ""
    rows = [
        f'<tr><td><span style="background:{colours[name]}55">{escape(name)}</span><td>{by.accepted}<td>{by.drafted}'
        for name, by in explanation.sources.items()
    ]
    undrafted = [f"<tr><td>no draft: {escape(why)}<td><td><td>{n}" for why, n in explanation.undrafted.items()]
    body = [
        f"<h1>{escape(explanation.request)}{escape(owner)}</h1>",
        f"<p>{count} tokens in {len(steps)} steps: {explanation.tau:.2f} a step.</p>",
        _list(explanation.verdict),
        "<table><tr><th>source<th>tokens kept<th>drafted<th>steps",
        *(rows + undrafted),
        "</table>",
        f"<pre>{''.join(_shown(step, colours) for step in steps)}</pre>",
        '<p class="plain">Coloured tokens were drafted; faint ones came in steps without a draft. <span class="lost">'
        "-3</span> marks three draft tokens that were not kept. Point at one for details. Below, each step's time.</p>",
        _bars(steps),
    ]
    head = f'<meta charset="utf-8"><title>{escape(explanation.request)}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en>{head}{''.join(body)}</html>\n"


def _list(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(it)}" for it in sentences) + "</ul>"


def _shown(step: Step, colours: dict[str, str]) -> str:
    """Return a step's tokens, with a mark where its draft was cut."""
    about, parts = f"step {step.step}", []
    for token in step.tokens:
        if token.source is not None:
            title, style = f"{about}, {_named(token)}", f' style="background:{colours[token.source]}55"'
        else:
            title = f"{about}: the model's own, after a draft" if step.drafted else f"{about}: no draft, {step.reason}"
            style = "" if step.drafted else ' class="plain"'
        parts.append(f'<span title="{escape(title)}"{style}>{escape(token.text)}</span>')
    if step.lost and step.reason not in ("accepted", "stopped"):
        lost = f"{about}, {step.reason}: " + " ".join(f"{token.text!r} ({_named(token)})" for token in step.lost)
        parts.insert(step.accepted, f'<span class="lost" title="{escape(lost)}">-{len(step.lost)}</span>')
    return "".join(parts)


def _named(token: Token) -> str:
    return f"{token.source}, {token.confidence or 0:.0%} sure"


def _bars(steps: Sequence[Step]) -> str:
    """Return a bar for each step, as high as it was long."""
    longest = max((step.seconds or 0.0 for step in steps), default=0.0) or 1.0
    bars = []
    for place, step in enumerate(steps):
        height = 60 * (step.seconds or 0.0) / longest
        title = f"step {step.step}: {1000 * (step.seconds or 0.0):.1f} ms, {step.batch} requests, {step.reason}"
        colour = COLOURS[0] if step.accepted else "#8889"
        bars.append(
            f'<rect x="{place}" y="{60 - height:.1f}" width=".8" height="{height:.1f}" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )
    return f'<svg viewBox="0 0 {len(steps)} 60" preserveAspectRatio="none">{"".join(bars)}</svg>'
