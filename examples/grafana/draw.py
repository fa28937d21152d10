"""Draw the dashboard as a picture, without Grafana: every panel of specplug.json, by its own queries to a Prometheus.

python examples/grafana/draw.py http://127.0.0.1:9090 dashboard.png --minutes 30

Needs matplotlib (pillow comes with it).  Every job, instance and engine is drawn.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import textwrap
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

DASHBOARD = Path(__file__).with_name("specplug.json")
STEPS = 120
COLOURS = ["#2f6fde", "#e07b39", "#3a9d5d", "#9b59b6", "#c0392b", "#7f8c8d", "#16a085", "#b8860b"]


def ask(url: str, path: str, **query: Any) -> list[Any]:
    """Return the results of a query of Prometheus's API."""
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


def series(url: str, panel: dict[str, Any], start: float, end: float) -> list[tuple[str, list[float], list[float]]]:
    """Return legend, minutes and values of each series of a panel."""
    window = f"{max(10, round((end - start) / 15))}s"
    found = []
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", window).replace("$__range", f"{round(end - start)}s")
        expression = re.sub(r"\$\w+", ".*", expression)
        for each in ask(url, "query_range", query=expression, start=start, end=end, step=(end - start) / STEPS):
            legend = re.sub(r"\{\{(\w+)\}\}", r"{\1}", target["legendFormat"]).format_map(each["metric"])
            times = [(float(at) - start) / 60 for at, _ in each["values"]]
            found.append((legend, times, [float(value) for _, value in each["values"]]))
    return found


def draw(axes: Any, panel: dict[str, Any], found: list[tuple[str, list[float], list[float]]]) -> None:
    """Draw one panel about as Grafana does."""
    shown = panel["fieldConfig"]["defaults"]
    percent = shown["unit"] == "percentunit"
    axes.set_title("\n".join(textwrap.wrap(panel["title"], 36)), fontsize=9, loc="left", fontweight="bold")
    if panel["type"] == "stat":
        axes.axis("off")
        value = found[0][2][-1] if found else float("nan")
        text = f"{value:.0%}" if percent else f"{value:.{shown.get('decimals', 0)}f}"
        text = {"Mode": "on" if value else "off"}.get(panel["title"], text)
        axes.text(0, 0.35, text, fontsize=20, color="#18794e", transform=axes.transAxes)
        return
    if panel["type"] == "barchart":
        bars = sorted((int(name), values[-1]) for name, _, values in found)
        axes.bar([name for name, _ in bars], [value for _, value in bars], color=COLOURS[0])
        axes.set_xticks([name for name, _ in bars])
    elif shown["custom"]["stacking"]["mode"] == "normal" and found:
        times = sorted({time for _, own, _ in found for time in own})
        rows = [[dict(zip(own, values, strict=True)).get(time, 0.0) for time in times] for _, own, values in found]
        axes.stackplot(times, rows, labels=[name for name, _, _ in found], colors=COLOURS, alpha=0.8)
    else:
        for (name, times, values), colour, dash in zip(
            found, COLOURS * len(found), ["-", "--"] * len(found), strict=False
        ):
            axes.plot(times, values, dash, label=name, color=colour, linewidth=1.2)
    if panel["type"] == "timeseries":
        axes.xaxis.set_major_formatter(lambda minutes, _: f"{minutes:.3g} min")
        axes.legend(fontsize=6, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylim(bottom=shown.get("min"), top=1.05 if shown.get("max") == 1 else None)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw the dashboard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prometheus", help="address, such as http://127.0.0.1:9090")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    given = parser.parse_args()
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    end = time.time()
    start = end - 60 * given.minutes
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(12, height / 3.2))
    for panel in panels:
        place = panel["gridPos"]
        bottom = 1 - (place["y"] + 0.76 * place["h"]) / height
        box = (place["x"] / 24 + 0.035, bottom, place["w"] / 24 - 0.05, 0.6 * place["h"] / height)
        draw(figure.add_axes(box), panel, series(given.prometheus.rstrip("/"), panel, start, end))
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=80)
    Image.open(drawn).convert("RGB").quantize(64).save(
        given.picture, format="png", optimize=True
    )  # a third of the size


if __name__ == "__main__":
    main()
