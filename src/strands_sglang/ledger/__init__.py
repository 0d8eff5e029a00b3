"""The ledger: the record of a run on disk, written while it runs and read back."""

from strands_sglang.ledger.event import Event, EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.writer import Durability, LedgerWriter

__all__ = ["Ledger", "EpisodeRecord", "Event", "EventKind", "LedgerWriter", "Durability"]
