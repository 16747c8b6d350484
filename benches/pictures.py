"""Draws the pictures of docs/benchmarks.md from the figures.

    python -m benches.pictures docs/pictures/figures.json docs/pictures

A picture whose benchmark is not in the file is not changed. The same figures give the same bytes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from benches import figures
from benches.instruction_cases import CASES
from benches.tables import CLIENT_CPU, RATE, Column, in_order, ratios, values
from benches.turns import Turn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "headrace",  # otherwise the names inside the file are random
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "figure.facecolor": "white",  # on a dark page too
    "legend.frameon": False,
}

OURS, FLOOR, OTHERS, CEILING = "#1f6fb4", "#4a4a4a", "#d08a3c", "#b02a2a"
#: The width of every picture, in inches.
WIDTH = 9.0


def main(source: str, folder: str) -> None:
    whole = figures.load(Path(source))
    for name, bench, draw in PICTURES:
        if bench in whole:
            path = Path(folder) / f"{name}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(whole).savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
            print(path)


def rates(bench: str, whole: dict[str, Any]) -> Figure:
    """Draw entries per second: a panel for each group, and the floor as a line."""
    turns = figures.turns_of(whole, bench)
    groups = list(dict.fromkeys(turn.group for turn in turns))
    figure = Figure(figsize=(WIDTH, 0.3 * len(in_order(turns)) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(groups), sharey=True, sharex=True, squeeze=False)[0]
    for axes, group in zip(panels, groups, strict=True):
        of_group = [turn for turn in turns if turn.group == group]
        floor = bars(axes, of_group, RATE, thousands)
        if floor is not None:
            axes.axvline(floor, color=FLOOR, linewidth=1, linestyle="--")
        axes.set_title(group)
        axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
    figure.supxlabel("entries per second: median, and from the lowest to the highest; dashed: the floor", fontsize=10)
    return figure


def client_cpu(whole: dict[str, Any]) -> Figure:
    """Draw the client's CPU seconds for a million entries, on a logarithmic scale."""
    turns = figures.turns_of(whole, "throughput")
    group = turns[0].group
    of_group = [turn for turn in turns if turn.group == group]
    figure = Figure(figsize=(WIDTH, 0.3 * len(in_order(of_group)) + 1.0), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_xlim(left=0.05)
    bars(axes, of_group, CLIENT_CPU, lambda value: f"{value:.2f} s" if value < 1 else f"{value:.1f} s")
    axes.set_title(f"into {group}")
    axes.set_xlabel("CPU seconds of the client for a million entries (logarithmic)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    return figure


def round_trips(whole: dict[str, Any]) -> Figure:
    """Draw entries per second by round trip: a line for each window."""
    turns = figures.turns_of(whole, "round_trips")
    trips = sorted({round_trip_of(turn) for turn in turns})
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    shades = mpl.colormaps["YlOrBr"]
    others = [name for name in in_order(turns) if not is_floor(name) and "default" not in name]
    for contender in in_order(turns):
        of_it = [turn for turn in turns if turn.contender == contender]
        medians = [median(values(RATE, [turn for turn in of_it if round_trip_of(turn) == trip])) for trip in trips]
        style: dict[str, Any] = {"color": OURS, "linewidth": 2.5, "zorder": 3}
        if is_floor(contender):
            style = {"color": FLOOR, "linestyle": "--"}
        elif contender in others:
            style = {"color": shades(0.35 + 0.5 * others.index(contender) / len(others)), "linewidth": 1.2}
        axes.plot(range(len(trips)), medians, marker="o", markersize=4, label=contender, **style)
    axes.set_xticks(range(len(trips)), [f"{trip:g} ms" for trip in trips])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: thousands(value))
    axes.grid(axis="y", color="#dddddd")
    axes.set_xlabel("round trip")
    axes.set_ylabel("entries per second")
    axes.set_title(f"into {turns[0].group.partition(',')[0]}")
    figure.legend(loc="outside right upper", fontsize=9)
    return figure


def layouts(whole: dict[str, Any]) -> Figure:
    """Draw rows per second by layout of the entries."""
    turns = figures.turns_of(whole, "layouts")
    group = turns[0].group
    of_group = [turn for turn in turns if turn.group == group]
    figure = Figure(figsize=(WIDTH, 0.3 * len(in_order(of_group)) + 1.0), layout="constrained")
    axes = figure.subplots()
    bars(axes, of_group, RATE, thousands)
    axes.set_title(f"into {group}")
    axes.set_xlabel("rows per second")
    axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
    return figure


def exactly_once(whole: dict[str, Any]) -> Figure:
    """Draw rows per second with exactly once as a share of those without: per kind of rows, one bar per server."""
    turns = figures.turns_of(whole, "exactly_once")
    groups = list(dict.fromkeys(turn.group for turn in turns))
    servers = list(dict.fromkeys(group.partition(", ")[0] for group in groups))
    kinds = list(dict.fromkeys(group.partition(", ")[2] for group in groups))
    off, script = in_order(turns)
    figure = Figure(figsize=(WIDTH, 0.2 * len(groups) + 1.0), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(servers)
    shades = mpl.colormaps["Blues"]
    for at, server in enumerate(servers):
        color = shades(0.45 + 0.5 * at / len(servers))
        places, middles = [], []
        for place, kind in enumerate(kinds):
            of_group = [turn for turn in turns if turn.group == f"{server}, {kind}"]
            found = ratios(of_group, RATE, script, off)
            places.append(place - 0.4 + height * (at + 0.5))
            middles.append(median(found))
            axes.plot([min(found), max(found)], [places[-1]] * 2, color="black", linewidth=1, zorder=3)
        axes.barh(places, middles, height=height * 0.9, color=color, label=server)
    axes.axvline(1.0, color=FLOOR, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(kinds)), kinds)
    axes.invert_yaxis()
    axes.set_xlabel(f"rows per second of {script} as a share of {off}: median, and from the lowest to the highest")
    figure.legend(loc="outside upper right", ncols=len(servers), fontsize=9)
    return figure


def instructions(whole: dict[str, Any]) -> Figure:
    """Draw instructions per message, with the ceilings that CI checks."""
    counted: dict[str, float] = whole["instructions"]["instructions"]
    ceilings: dict[str, float] = whole["instructions"]["ceilings"]
    names = [name for name in counted if name in ceilings]
    figure = Figure(figsize=(WIDTH, 0.3 * len(names) + 1.0), layout="constrained")
    axes = figure.subplots()
    places = range(len(names))
    axes.barh(places, [counted[name] for name in names], color=OURS, height=0.7)
    for place, name in enumerate(names):
        label(axes, f"{counted[name]:,.0f}", max(counted[name], ceilings[name]), place)
        if loop := counted.get(CASES[name].loop):
            axes.barh(place, loop, color="#a9c8e4", height=0.7)
    axes.plot([ceilings[name] for name in names], places, "|", color=CEILING, markersize=16, markeredgewidth=2)
    axes.set_yticks(places, [CASES[name].title for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("instructions for a message; red: the ceiling; light: the loop in Python by itself")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def bars(axes: Axes, turns: Sequence[Turn], column: Column, text: Callable[[float], str]) -> float | None:
    """Draw a bar for each contender from the top down, with its spread, and return the median of the floor."""
    floor = None
    names = in_order(turns)
    longest = 0.0
    for place, name in enumerate(names):
        found = values(column, [turn for turn in turns if turn.contender == name])
        middle, low, high = median(found), min(found), max(found)
        color = FLOOR if is_floor(name) else OURS if name.startswith("headrace") else OTHERS
        axes.barh(place, middle, color=color, height=0.7)
        axes.plot([low, high], [place, place], color="black", linewidth=1)
        label(axes, text(middle), high, place)
        floor = middle if is_floor(name) else floor
        longest = max(longest, high)
    axes.set_yticks(range(len(names)), names)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.set_xlim(right=longest * (2 if axes.get_xscale() == "log" else 1.25))
    return floor


def label(axes: Axes, text: str, end: float, place: int) -> None:
    """Write a text after a bar, in front of the line of the floor."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.annotate(text, (end, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, bbox=box)


def is_floor(contender: str) -> bool:
    return contender.startswith("floor")


def round_trip_of(turn: Turn) -> float:
    found = re.search(r"round trip ([\d.]+) ms", turn.group)
    assert found
    return float(found[1])


def thousands(value: float) -> str:
    """Format as `0`, `548k`, `1.2M`."""
    if value < 1:
        return "0"
    return f"{value / 1e6:.3g}M" if value >= 999_500 else f"{value / 1e3:.0f}k"


#: The name of the file, the benchmark that it needs, and the function that draws it.
PICTURES: Sequence[tuple[str, str, Callable[[dict[str, Any]], Figure]]] = (
    ("throughput", "throughput", partial(rates, "throughput")),
    ("client_cpu", "throughput", client_cpu),
    ("round_trips", "round_trips", round_trips),
    ("layouts", "layouts", layouts),
    ("exactly_once", "exactly_once", exactly_once),
    ("instructions", "instructions", instructions),
    ("spark_source", "spark_source", partial(rates, "spark_source")),
)

if __name__ == "__main__":
    main(*sys.argv[1:])
