"""Chats for models with a chat template: two tasks of each of six kinds, which have no single right answer."""

from __future__ import annotations

import json
from pathlib import Path

from specplug.demo.tasks import Task

__all__ = ["chat_tasks"]

FILE = Path(__file__).with_name("chats.jsonl")
FIRST = "first"


def chat_tasks(each: int) -> tuple[Task, list[Task]]:
    """Return one chat to begin with, and at most `each` of every kind: the kinds one after the other."""
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    tasks = [Task(row["kind"], row["prompt"], answer="") for row in rows]
    [first] = [task for task in tasks if task.kind == FIRST]
    kinds = dict.fromkeys(task.kind for task in tasks if task is not first)
    return first, [task for kind in kinds for task in [it for it in tasks if it.kind == kind][:each]]
