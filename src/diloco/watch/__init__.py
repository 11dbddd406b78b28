"""Reading and showing run folders. Imports neither torch nor the trainer; Plotly only while a page is written."""

from diloco.watch.compare import compare, comparison_table
from diloco.watch.events import EventLog, read_events, truncate_after
from diloco.watch.report import write_comparison, write_report
from diloco.watch.runfolder import ROW_COLUMNS, RunFolder, atomic_write_text, read_json, read_row, write_json, write_row

__all__ = [
    "ROW_COLUMNS",
    "EventLog",
    "RunFolder",
    "atomic_write_text",
    "compare",
    "comparison_table",
    "read_events",
    "read_json",
    "read_row",
    "truncate_after",
    "write_comparison",
    "write_json",
    "write_report",
    "write_row",
]
