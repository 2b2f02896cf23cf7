"""`unicronctl top`: runs, incidents and nodes, live on the whole terminal. Asks the API alone.

q quit · Enter the story of a row · Esc back · r at once
"""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from unicrond.ctl.client import Client
from unicrond.ctl.lists import INCIDENTS, INCIDENTS_USUAL, RUNS, RUNS_USUAL
from unicrond.ctl.show import STYLES, Columns, cell, console
from unicrond.ctl.status import summary
from unicrond.ctl.why import ask, story
from unicrond.errors import UnicronError

MOST_ROWS = 500
Answers = dict[str, Any]


class Top(App[None]):
    CSS = """
    #summary { height: auto; padding: 0 1; }
    DataTable { height: 1fr; border: round $secondary; }
    #incidents { height: 40%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"), ("r", "look", "Look now"), ("tab", "focus_next", "Other table"),
    ]  # fmt: skip
    ENABLE_COMMAND_PALETTE = False
    TITLE = "unicronctl top"

    def __init__(self, client: Client, seconds: float) -> None:
        super().__init__()
        self._client, self._seconds = client, seconds

    def compose(self) -> ComposeResult:
        # Held, since they are filled while a story is before them too.
        self._summary = Static("asking unicrond …", id="summary")
        self._runs = _table("runs", "Runs", RUNS_USUAL)
        self._incidents = _table("incidents", "Open incidents", INCIDENTS_USUAL)
        yield from (self._summary, self._runs, self._incidents, Footer())

    def on_mount(self) -> None:
        self.action_look()
        self.set_interval(self._seconds, self.action_look)

    @work(thread=True, exclusive=True)
    def action_look(self) -> None:
        try:
            found = {
                "health": self._client.get("/health"),
                "runs": self._client.items("/runs", live=True),
                "incidents": self._client.items("/incidents", open=True),
                "nodes": self._client.items("/nodes"),
                "allocations": self._client.items("/allocations"),
            }
        except UnicronError as error:
            self.call_from_thread(self._summary.update, Text(str(error), style="bold red"))
        else:
            self.call_from_thread(self._show, found)

    def _show(self, found: Answers) -> None:
        lines = summary(found["health"], found["nodes"], found["allocations"])
        self._summary.update(Text("\n").join(lines))
        _fill(self._runs, found["runs"], RUNS, RUNS_USUAL)
        _fill(self._incidents, found["incidents"], INCIDENTS, INCIDENTS_USUAL)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        subject = event.row_key.value
        if subject is not None:
            self.push_screen(Story(self._client, subject))


class Story(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "Back")]

    def __init__(self, client: Client, subject: str) -> None:
        super().__init__()
        self._client, self._subject = client, subject
        self._told = Static("…", id="story")

    def compose(self) -> ComposeResult:
        yield VerticalScroll(self._told)
        yield Footer()

    def on_mount(self) -> None:
        self._ask()

    @work(thread=True, exclusive=True)
    def _ask(self) -> None:
        try:
            answer = ask(self._client, self._subject, 500)
            head = Text.assemble((answer["subject"], "bold"), f"  {answer['summary']}")
            words = Text("\n").join([head, *story(answer["lines"], console())])
        except UnicronError as error:
            words = Text(str(error), style="bold red")
        self.app.call_from_thread(self._told.update, words)


def _table(name: str, title: str, columns: tuple[str, ...]) -> DataTable[Text]:
    table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
    table.border_title = title
    table.add_columns(*(column.upper() for column in columns))
    return table


def _fill(
    table: DataTable[Text], items: list[Any], columns: Columns, usual: tuple[str, ...]
) -> None:
    """The cursor stays on the row that it was on, wherever that is now."""
    at = table.cursor_row
    keys = [str(columns[usual[0]](item)) for item in items[:MOST_ROWS]]
    held = table.ordered_rows[at].key.value if 0 <= at < table.row_count else None
    table.clear()
    for key, item in zip(keys, items, strict=False):
        cells = (cell(columns[name](item)) for name in usual)
        table.add_row(*(Text(word, style=STYLES.get(word, "")) for word in cells), key=key)
    if held in keys:
        table.move_cursor(row=keys.index(held))
