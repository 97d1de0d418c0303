"""Several requests for text at once on one model: whose step is next, what is kept, and what is counted."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from sanderling.core.closing import Closing
from sanderling.core.errors import ContextError, EngineError, OptionError, QueueFullError, SanderlingError, first_line
from sanderling.core.progress import Event
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array
from sanderling.run.policy import NEVER
from sanderling.run.policy.latency import LatencyModel, observe, predict_ms
from sanderling.run.text.base import GREEDY, Message, Sampling, TextModel
from sanderling.run.text.conversation import Conversation, TextRequest
from sanderling.run.text.limits import TextLimits, TextStatistics
from sanderling.run.text.prefixes import PrefixCache
from sanderling.run.text.stream import Finish, Outlet, TextStream
from sanderling.run.text.turns import Alone, Turns

_STEP_MS, _LONE_STEP_MS = 100.0, 250.0  # of a chunk of a prompt, while other requests wait and while none does
_CHUNKS = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)  # of a prompt, in tokens
_FIRST_CHUNK = 32
_CONTEXTS = 2  # that memory is kept for
_KEPT_TIMES = 1000
_DRAFTS = 7
_WEIGHT = 0.3  # of the newest measurement
_END_S = 5.0
_CLOSED = "the text session is closed; load the package again"

_T = TypeVar("_T")
Prompt = str | Sequence[int] | Sequence[Message]


class TextSession(Closing):
    """Computes requests on a model, a step of each in turn. Close it, or use it in a ``with`` block.

    Requests share the processor's time alike: the next step is of the one that has had the least. A prompt is read in
    chunks, and when an answer is over, its keys and values are kept for prompts that begin with it.

    Args:
        model: that computes; closed with the session.
        limits: see there.
        turns: by which other models run between the steps.
        events: of loading the model.

    Attributes:
        events: what was asked for and is not done as asked.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        limits: TextLimits | None = None,
        turns: Turns | None = None,
        events: Sequence[Event] = (),
    ) -> None:
        self.model = model
        self.limits = limits or TextLimits()
        self._turns = turns or Alone()
        self._budget = self.limits.cache_tokens or _CONTEXTS * model.spec.context_length
        self._waiting: deque[Conversation] = deque()
        self._active: list[Conversation] = []
        self._kept = PrefixCache()
        self._latency = LatencyModel()  # of a step, by the tokens that it reads
        self._shared_latency = LatencyModel()  # of a step of several requests, by their number
        self._together = min(self.limits.together, model.most_together)
        self._drafts, found = _drafts(model, self.limits.drafts)
        self.events = (*events, *found)
        self._prefill_ms: float | None = None  # of a token of a prompt
        self._decode_ms: float | None = None
        self._counts: Counter[str] = Counter()
        self._first_ms: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._between_ms: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closed = False
        self.used_s = time.monotonic()

    def start(
        self,
        prompt: Prompt,
        sampling: Sampling = GREEDY,
        *,
        stop: Sequence[str] = (),
        schema: str = "",
        priority: int = 0,
        notify: Callable[[], None] | None = None,
    ) -> TextStream:
        """Begin an answer.

        Args:
            prompt: a text, its ids, or the messages of a conversation.
            sampling: how its tokens are chosen.
            stop: texts that end it, and are not part of it.
            schema: JSON schema that it must keep.
            priority: larger is sooner.
            notify: called by another thread when there is news of it; must be quick and must not raise.

        Raises:
            ContextError: the prompt leaves no room in the model's context.
            OptionError: the prompt is empty or no valid Unicode, or an option is out of range.
            QueueFullError: too many requests wait.
            EngineError: the session is closed.
        """
        if "" in stop:
            raise OptionError("a stop string is empty: expected at least one character")
        request = TextRequest(
            prompt=self.ids(prompt), sampling=sampling, stop=tuple(stop), schema=schema, priority=priority
        )
        conversation = Conversation(self.model, request, Outlet(notify), drafts=self._drafts)
        with self._lock:
            if self._closed:
                raise EngineError(_CLOSED)
            if len(self._waiting) >= self.limits.waiting:
                self._counts["rejected"] += 1
                raise QueueFullError(f"{len(self._waiting)} requests for text wait already: send fewer at a time")
            self._waiting.append(conversation)
            self.used_s = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sanderling-text", daemon=True)
                self._thread.start()
            self._work.notify_all()
        return TextStream(conversation.outlet, conversation.cancel)

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a prompt, checked.

        Raises:
            ContextError: it leaves no room in the model's context.
            OptionError: it is empty, no valid Unicode, or has ids that are out of the vocabulary.
        """
        spec = self.model.spec
        if isinstance(prompt, str):
            ids = tuple(self.model.encode(prompt))
        elif prompt and isinstance(prompt[0], Message):
            messages = [message for message in prompt if isinstance(message, Message)]
            ids = tuple(self.model.encode(self.model.render(messages)))
        else:
            ids = tuple(token for token in prompt if isinstance(token, int))
            wrong = next((token for token in ids if not 0 <= token < spec.vocabulary), None)
            if wrong is not None:
                raise OptionError(f"token {wrong} is not in the vocabulary: ids are 0 to {spec.vocabulary - 1}")
        if not ids:
            raise OptionError("the prompt is empty: expected at least one token")
        if len(ids) >= spec.context_length:
            raise ContextError(
                f"the prompt has {len(ids)} tokens: prompt and answer together have {spec.context_length}, the model's "
                "context; shorten it"
            )
        return ids

    def statistics(self) -> TextStatistics:
        """What has happened so far."""
        with self._lock:
            kinds = ("completed", "cancelled", "failed", "rejected")
            return TextStatistics(
                requests={kind: self._counts[kind] for kind in kinds},
                active=len(self._active),
                waiting=len(self._waiting),
                prompt_tokens=self._counts["prompt tokens"],
                cached_tokens=self._counts["cached tokens"],
                tokens=self._counts["tokens"],
                drafted_tokens=self._counts["drafted tokens"],
                accepted_tokens=self._counts["accepted tokens"],
                shared_calls=self._counts["shared calls"],
                shared_tokens=self._counts["shared tokens"],
                prefix_hits=self._counts["prefix hits"],
                kept=len(self._kept),
                cache_tokens=self._held(),
                prefill_tokens_per_s=1e3 / self._prefill_ms if self._prefill_ms else None,
                decode_tokens_per_s=1e3 / self._decode_ms if self._decode_ms else None,
                first_ms=percentiles(list(self._first_ms)) if self._first_ms else None,
                between_ms=percentiles(list(self._between_ms)) if self._between_ms else None,
            )

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether requests are computed or wait."""
        return bool(self._active or self._waiting)

    @property
    def held_bytes(self) -> int:
        """Memory of the keys and values of all sequences."""
        with self._lock:
            return self._held() * self.model.token_bytes

    def forget(self) -> int:
        """Give back what is kept of answers that are over; returns its bytes."""
        with self._lock:
            capacity = self._kept.capacity
            self._kept.clear()
        return capacity * self.model.token_bytes

    def close(self, *, drain_s: float = 0.0) -> None:
        """Let requests end within ``drain_s``, end the rest, and close the model; a second call does nothing."""
        end_s = time.monotonic() + drain_s
        with self._lock:
            closed, self._closed = self._closed, True
            while self.is_busy and (left_s := end_s - time.monotonic()) > 0:
                self._work.wait(left_s)
            for conversation in [*self._active, *self._waiting]:
                conversation.cancel()
            self._work.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S)
        with self._lock:
            self._kept.clear()
        if not closed:
            self.model.close()

    def _run(self) -> None:
        """Take steps until the session is closed."""
        while True:
            with self._lock:
                conversation = self._next()
                if conversation is None:
                    return
                limit = self._limit(conversation)
                others = self._companions(conversation)
            if others:
                self._step_together([conversation, *others])
            else:
                self._step(conversation, limit)

    def _next(self) -> Conversation | None:
        """The request whose step is next; waits for one; None after closing. Under the lock."""
        while True:
            for conversation in [each for each in (*self._active, *self._waiting) if each.is_cancelled]:
                self._end(conversation, "cancelled", None)
            while self._waiting and self._has_room(self._waiting[0]):
                self._admit(self._waiting.popleft())
            if self._active:
                return min(self._active, key=lambda each: (-each.request.priority, each.used_ms))
            if self._closed:
                return None
            self._work.wait()

    def _has_room(self, conversation: Conversation) -> bool:
        """Whether a request may start; kept sequences make room. Under the lock."""
        if not self._active:
            return True
        if len(self._active) >= self.limits.conversations:
            return False
        return sum(each.capacity for each in self._active) + conversation.capacity <= self._budget

    def _admit(self, conversation: Conversation) -> None:
        """Let a request have steps. Under the lock."""
        request = conversation.request
        if not request.schema:
            found = self._kept.take(request.prompt, capacity=conversation.needed)
            if found is not None:
                conversation.go_on_from(*found)
                self._counts["prefix hits"] += 1
                self._counts["cached tokens"] += found[1]
        self._counts["prompt tokens"] += len(request.prompt)
        conversation.used_ms = min((each.used_ms for each in self._active), default=0.0)
        self._active.append(conversation)
        self._trim()

    def _trim(self) -> None:
        """Drop kept sequences that are over the budget. Under the lock."""
        while self._held() > self._budget and self._kept.drop_oldest():
            pass

    def _held(self) -> int:
        return sum(each.capacity for each in self._active) + self._kept.capacity

    def _limit(self, conversation: Conversation) -> int:
        """Tokens that the next step may read. Under the lock."""
        slice_ms = self._turns.slice_ms()
        if not conversation.is_reading:
            if slice_ms == NEVER:
                return 1 + self._drafts
            return next(
                (size for size in _CHUNKS if size <= 1 + self._drafts and predict_ms(self._latency, size) <= slice_ms),
                1,
            )
        if not self._latency.sizes:
            return _FIRST_CHUNK
        slice_ms = min(slice_ms, _STEP_MS if len(self._active) > 1 else _LONE_STEP_MS)
        return next((size for size in _CHUNKS if predict_ms(self._latency, size) <= slice_ms), 1)

    def _companions(self, conversation: Conversation) -> list[Conversation]:
        """Other requests whose next token the same call can write. Under the lock."""
        if self._together < 2 or not conversation.is_writing:
            return []
        alike = [
            each
            for each in self._active
            if each is not conversation and each.is_writing and each.request.priority == conversation.request.priority
        ]
        alike.sort(key=lambda each: each.used_ms)
        slice_ms = self._turns.slice_ms()
        most = self._together
        if slice_ms != NEVER:
            known = self._shared_latency
            most = 2 if not known.sizes else most
            most = next((size for size in range(most, 1, -1) if predict_ms(known, size) <= slice_ms), 1)
        return alike[: most - 1]

    def _step(self, conversation: Conversation, limit: int) -> None:
        """Take a step of one request, when it is its turn."""
        before, drafted, accepted = conversation.tokens, conversation.drafted_tokens, conversation.accepted_tokens
        is_reading = conversation.is_reading
        reads = min(conversation.unread, limit) if is_reading else 0
        took_ms, finish, error = self._timed(lambda: conversation.step(limit), conversation)
        written, guessed = conversation.tokens - before, conversation.drafted_tokens - drafted
        if error is None:
            self._learn(max(reads, 1 + guessed), took_ms, read=reads, written=written)
        with self._lock:
            self._counts["tokens"] += written
            self._counts["drafted tokens"] += guessed
            self._counts["accepted tokens"] += conversation.accepted_tokens - accepted
            self._told(conversation, took_ms)
            if finish is not None or error is not None:
                self._end(conversation, finish, error)

    def _step_together(self, conversations: list[Conversation]) -> None:
        """Write a token for each of several requests by one call of the engine, when it is their turn.

        Where the call fails, each request takes its step alone, so that only the one whose fault it is fails.
        """

        def call() -> Array:
            pairs = [conversation.last_token() for conversation in conversations]
            return self.model.append_together([pair[0] for pair in pairs], [pair[1] for pair in pairs])

        took_ms, scores, error = self._timed(call, conversations[0])
        if scores is None or error is not None:
            self._counts["failed shared calls"] += 1
            for conversation in conversations:
                self._step(conversation, 1)
            return
        self._shared_latency = observe(self._shared_latency, len(conversations), took_ms)
        self._decode_ms = _smoothed(self._decode_ms, took_ms)
        outcomes = [_outcome(conversation, row) for conversation, row in zip(conversations, scores, strict=True)]
        with self._lock:
            self._counts["shared calls"] += 1
            self._counts["shared tokens"] += len(conversations)
            for conversation, (finish, failure) in zip(conversations, outcomes, strict=True):
                self._counts["tokens"] += failure is None
                self._told(conversation, took_ms / len(conversations))
                if finish is not None or failure is not None:
                    self._end(conversation, finish, failure)

    def _timed(
        self, step: Callable[[], _T], conversation: Conversation
    ) -> tuple[float, _T | None, SanderlingError | None]:
        """Run a step when it is its turn; returns the milliseconds that it took, and its result or what failed."""
        result: _T | None = None
        took_ms = 0.0

        def run() -> None:
            nonlocal result, took_ms
            since_s = time.monotonic()
            result = step()
            took_ms = (time.monotonic() - since_s) * 1e3

        try:
            self._turns.take(run, priority=conversation.request.priority)
        except SanderlingError as error:
            return took_ms, None, error
        except Exception as error:  # noqa: BLE001 - one request's fault is not the others'
            return took_ms, None, EngineError(f"text could not be computed: {first_line(error)}")
        return took_ms, result, None

    def _learn(self, size: int, took_ms: float, *, read: int, written: int) -> None:
        """Note how long a step of one request took."""
        if size in _CHUNKS:
            self._latency = observe(self._latency, size, took_ms)
        if read > 1:
            self._prefill_ms = _smoothed(self._prefill_ms, took_ms / read)
        elif not read and written:
            self._decode_ms = _smoothed(self._decode_ms, took_ms / written)

    def _told(self, conversation: Conversation, took_ms: float) -> None:
        """Note what a request has used, and how long its reader has waited for its tokens. Under the lock."""
        conversation.used_ms += took_ms
        waits = conversation.take_waits_ms()
        if waits and conversation.tokens == len(waits):
            self._first_ms.append(waits.pop(0))
        self._between_ms.extend(waits)

    def _end(self, conversation: Conversation, finish: Finish | None, error: SanderlingError | None) -> None:
        """A request is over. Under the lock."""
        if conversation in self._active:
            self._active.remove(conversation)
        else:
            self._waiting.remove(conversation)
        if finish is None:
            self._counts["failed"] += 1
            conversation.drop()
            conversation.outlet.end(error or EngineError(_CLOSED))
        else:
            self._counts["cancelled" if finish == "cancelled" else "completed"] += 1
            conversation.finish(finish, self._kept.keep)
            self._trim()
        self._work.notify_all()


def _smoothed(known: float | None, value: float) -> float:
    return value if known is None else known + _WEIGHT * (value - known)


def _outcome(conversation: Conversation, scores: Array) -> tuple[Finish | None, SanderlingError | None]:
    """How an answer goes on after a call with others: its end, or what failed, or neither."""
    try:
        return conversation.go_on(scores), None
    except SanderlingError as error:
        return None, error


def _drafts(model: TextModel, wanted: int | None) -> tuple[int, tuple[Event, ...]]:
    """Most tokens of a guess, and what is to be said about it."""
    if wanted == 0:
        return 0, ()
    if model.most_scored < 2:
        if wanted is None:
            return 0, ()
        reason = "the engine tells the scores after one token a call: each token takes a call"
        return 0, (Event(kind="drafts-off", subject="drafts", reason=reason),)
    if wanted is None:
        return (_DRAFTS if model.rows_are_independent else 0), ()
    if not model.rows_are_independent:
        reason = (
            "what the variant rounds depends on all tokens of a call: guesses are taken only where the likeliest token "
            "is clear, and only of answers without sampling"
        )
        return wanted, (Event(kind="drafts-guarded", subject="drafts", reason=reason),)
    return wanted, ()
