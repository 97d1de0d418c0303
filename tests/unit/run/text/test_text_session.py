"""Sessions of text on a model that goes on with the alphabet: `a` is followed by `b`, and `z` by the end."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from sanderling.core.errors import ContextError, EngineError, OptionError, QueueFullError
from sanderling.run.text.base import Message, Sampling
from sanderling.run.text.limits import TextLimits
from sanderling.run.text.session import TextSession
from tests.engines import wait_until
from tests.text_models import SPEC, AlphabetModel

FEW = Sampling(temperature=0, max_tokens=3)


class Gate:
    """Holds a model up before its calls, until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.calls = 0

    def __call__(self, _) -> None:
        self.calls += 1
        assert self.opened.wait(10)


@pytest.fixture
def model():
    return AlphabetModel()


@pytest.fixture
def session(model):
    with TextSession(model) as session:
        yield session


def test_an_answer_goes_on_to_the_models_end(session):
    result = session.start("abc").result()
    assert result.text == "defghijklmnopqrstuvwxyz"
    assert result.finish == "stop"
    assert (result.prompt_tokens, result.cached_tokens, result.tokens) == (3, 0, 24)
    assert 0 < result.first_ms <= result.total_ms


def test_pieces_of_a_stream_are_the_whole_answer(session):
    with session.start("v") as stream:
        assert "".join(stream) == "wxyz" == stream.result().text


def test_most_tokens_end_an_answer(session):
    result = session.start("a", FEW).result()
    assert (result.text, result.finish, result.tokens) == ("bcd", "length", 3)


@pytest.mark.parametrize(("stop", "text"), [(["e"], "bcd"), (["def"], "bc"), (["zz", "yz"], "bcdefghijklmnopqrstuvwx")])
def test_stop_strings_end_an_answer_also_when_split_over_tokens(session, stop, text):
    result = session.start("a", stop=stop).result()
    assert (result.text, result.finish) == (text, "stop")


def test_what_a_stop_string_might_have_begun_with_is_given_out_in_the_end(session):
    assert session.start("a", FEW, stop=["cdx"]).result().text == "bcd"


def test_characters_of_several_tokens_come_whole(session):
    pieces = list(session.start("é", Sampling(temperature=0, max_tokens=5)))
    assert "".join(pieces) == "éé\ufffd"
    assert all(len(piece.encode()) > 1 for piece in pieces)


def test_a_conversations_next_turn_reads_only_what_is_new(session, model):
    first = session.start([Message("user", "abc")], FEW).result()
    assert first.text == "^_`"
    before = len(model.read)
    messages = [Message("user", "abc"), Message("assistant", first.text), Message("user", "de")]
    second = session.start(messages, FEW).result()
    shared = len("[user]abc\n[assistant]") + 2  # the last token was never read
    assert second.cached_tokens == shared
    assert second.prompt_tokens == len("[user]abc\n[assistant]^_`\n[user]de\n[assistant]")
    assert model.read[before] == second.prompt_tokens - shared
    statistics = session.statistics()
    assert statistics.prefix_hits == 1
    assert statistics.cached_tokens == shared
    assert statistics.requests["completed"] == 2


def test_the_same_prompt_again_computes_one_token_and_answers_alike(session):
    text = "the quick brown fox"
    first, second = session.start(text, FEW).result(), session.start(text, FEW).result()
    assert second.cached_tokens == len(text) - 1
    assert first.text == second.text


def test_a_long_conversation_is_not_given_up_for_a_short_beginning(session):
    long = session.start("[system]" + 100 * "ab", FEW).result()
    assert session.start("[system]xyz", FEW).result().cached_tokens == 0
    again = session.start("[system]" + 100 * "ab" + long.text + "c", FEW).result()
    assert again.cached_tokens > 200


def test_a_long_prompt_is_read_in_chunks_and_short_requests_pass_it(model):
    model.before = lambda ids: time.sleep(1e-3 * len(ids))
    with TextSession(model) as session:
        session.start("warm up with a longer text, so that the pace is known", FEW).result()
        long = session.start(400 * "m", FEW)
        short = session.start("x", Sampling(temperature=0, max_tokens=2))
        assert short.result().text == "yz"
        assert not long.is_over
        assert long.result().text == "nop"
    assert max(model.read) < 400


def test_requests_share_the_time_alike(model):
    order = []
    model.before = lambda ids: order.append(ids[-1])
    with TextSession(model) as session:
        gate = Gate()
        model.before = gate
        streams = [session.start(letter, Sampling(temperature=0, max_tokens=8)) for letter in "aA"]
        wait_until(lambda: gate.calls)
        model.before = lambda ids: (order.append(ids[-1]), time.sleep(2e-3))
        gate.opened.set()
        assert [stream.result().text for stream in streams] == ["bcdefghi", "BCDEFGHI"]
    lower = "".join(map(chr, order)).swapcase()
    assert all(abs(sum(map(str.islower, lower[:n])) - n / 2) <= 3 for n in range(len(lower)))


def test_a_higher_priority_goes_first(model):
    gate = Gate()
    model.before = gate
    with TextSession(model, limits=TextLimits(conversations=3)) as session:
        held = session.start("a", FEW)
        wait_until(lambda: gate.calls)
        low, high = session.start("b", FEW, priority=-1), session.start("c", FEW, priority=1)
        ended = []
        threads = [
            threading.Thread(target=lambda s=stream, n=name: (s.result(), ended.append(n)))
            for name, stream in (("low", low), ("high", high), ("held", held))
        ]
        for thread in threads:
            thread.start()
        model.before = lambda _: time.sleep(5e-3)
        gate.opened.set()
        for thread in threads:
            thread.join(10)
        assert ended == ["high", "held", "low"]


def test_cancelling_gives_the_memory_back_after_the_step_that_runs(model):
    gate = Gate()
    model.before = gate
    with TextSession(model) as session:
        stream = session.start("abcdef")
        wait_until(lambda: gate.calls)
        assert len(model.open) == 1
        stream.cancel()
        gate.opened.set()
        assert stream.result().finish == "cancelled"
        wait_until(lambda: not model.open)
        assert session.statistics().requests["cancelled"] == 1


def test_a_stream_that_nobody_holds_any_more_is_cancelled(model):
    model.before = lambda _: time.sleep(2e-3)
    with TextSession(model) as session:
        stream = session.start("A")
        next(stream)
        del stream
        gc.collect()
        wait_until(lambda: session.statistics().requests["cancelled"] == 1 and not model.open)


def test_what_waits_can_be_cancelled_before_it_begins(model):
    gate = Gate()
    model.before = gate
    with TextSession(model, limits=TextLimits(conversations=1)) as session:
        first, second = session.start("x", FEW), session.start("a", FEW)
        second.cancel()
        gate.opened.set()
        assert second.result().finish == "cancelled"
        assert second.result().tokens == 0
        assert first.result().text == "yz"


def test_too_many_that_wait_are_refused(model):
    gate = Gate()
    model.before = gate
    with TextSession(model, limits=TextLimits(conversations=1, waiting=1)) as session:
        streams = [session.start("x", FEW)]
        wait_until(lambda: gate.calls)
        streams.append(session.start("x", FEW))
        with pytest.raises(QueueFullError, match="1 requests for text wait already"):
            session.start("x", FEW)
        gate.opened.set()
        assert [stream.result().text for stream in streams] == ["yz", "yz"]
        assert session.statistics().requests == {"completed": 2, "cancelled": 0, "failed": 0, "rejected": 1}


@pytest.mark.parametrize(
    ("prompt", "error", "told"),
    [
        ("", OptionError, "the prompt is empty"),
        ([], OptionError, "the prompt is empty"),
        ("a\ud800b", OptionError, "not valid Unicode: lone surrogate at character 1"),
        ([1, 257], OptionError, "token 257 is not in the vocabulary: ids are 0 to 256"),
        (512 * "a", ContextError, "the prompt has 512 tokens: prompt and answer together have 512"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_one_clear_error(session, prompt, error, told):
    with pytest.raises(error, match=told):
        session.start(prompt)


def test_an_empty_stop_string_is_refused(session):
    with pytest.raises(OptionError, match="stop string is empty"):
        session.start("a", stop=[""])


def test_an_answer_ends_where_the_context_does(session):
    result = session.start(250 * "é").result()
    assert (result.finish, result.tokens) == ("length", 12)


def test_an_answer_longer_than_expected_gets_more_memory():
    model = AlphabetModel(SPEC.model_copy(update={"context_length": 2048}))
    with TextSession(model) as session:
        result = session.start("é", Sampling(temperature=0, max_tokens=900)).result()
        assert result.text == 450 * "é"
        assert sum(model.read) > 901  # what was there was read again
        assert [generation.capacity for generation in model.open] == [1024]


def test_a_failure_is_its_own_requests_alone(model):
    def fail(ids):
        if ids[-1] == ord("q"):
            raise EngineError("no memory")

    model.before = fail
    with TextSession(model) as session:
        bad, good = session.start("aq"), session.start("x")
        with pytest.raises(EngineError, match="no memory"):
            bad.result()
        with pytest.raises(EngineError, match="no memory"):
            list(bad)
        assert good.result().text == "yz"
        assert session.statistics().requests["failed"] == 1
        assert not model.open


def test_an_unforeseen_failure_is_an_engines_error(model):
    model.before = lambda _: 1 / 0
    with (
        TextSession(model) as session,
        pytest.raises(EngineError, match="text could not be computed: division by zero"),
    ):
        session.start("a").result()


def test_kept_sequences_never_take_more_than_their_share(model):
    with TextSession(model, limits=TextLimits(cache_tokens=600)) as session:
        for letter in "abcdefghijkl":
            session.start(40 * letter, FEW).result()
        assert session.statistics().cache_tokens <= 600
        assert sum(generation.capacity for generation in model.open) <= 600
        assert session.forget() > 0
        assert not model.open


def test_requests_that_do_not_fit_together_wait_for_each_other(model):
    gate = Gate()
    model.before = gate
    with TextSession(model, limits=TextLimits(cache_tokens=300)) as session:
        streams = [session.start(letter * 150, FEW) for letter in "ax"]
        wait_until(lambda: gate.calls)
        assert session.statistics().waiting == 1
        gate.opened.set()
        assert [stream.result().text for stream in streams] == ["bcd", "yz"]


def test_seeds_give_the_same_text_again_and_others_another():
    with TextSession(AlphabetModel()) as session:

        def ask(seed):
            sampling = Sampling(temperature=5, top_k=50, seed=seed, max_tokens=40)
            return session.start("a", sampling).result().text

        assert ask(1) == ask(1)
        assert ask(1) != ask(2)


@pytest.mark.parametrize(
    "sampling", [{"temperature": 5e-324}, {"repetition_penalty": 0.01}, {"repetition_penalty": 100}]
)
def test_a_token_is_chosen_with_the_most_extreme_sampling(session, sampling):
    assert session.start("v", Sampling(**{"temperature": 0.01, "max_tokens": 3, **sampling})).result().tokens == 3


def test_closing_lets_requests_end_in_time_and_ends_the_rest(model):
    model.before = lambda _: time.sleep(5e-3)
    session = TextSession(model)
    quick = session.start("w")
    session.close(drain_s=5)
    assert quick.result().text == "xyz"
    assert model.is_closed
    assert not model.open
    with pytest.raises(EngineError, match="session is closed"):
        session.start("a")


def test_closing_at_once_cancels_what_runs_and_waits(model):
    model.before = lambda _: time.sleep(5e-3)
    session = TextSession(model, limits=TextLimits(conversations=1))
    streams = [session.start("A"), session.start("A")]
    session.close()
    assert {stream.result().finish for stream in streams} == {"cancelled"}
    assert not model.open


def test_requests_are_written_by_one_call_and_each_gets_its_own_text():
    model = AlphabetModel(most_together=3)
    with TextSession(model, limits=TextLimits(conversations=5)) as session:
        gate = Gate()
        model.before = gate
        streams = [session.start(letter, Sampling(temperature=0, max_tokens=9)) for letter in "acegi"]
        wait_until(lambda: gate.calls)
        gate.opened.set()
        assert [stream.result().text for stream in streams] == [
            "bcdefghij", "defghijkl", "fghijklmn", "hijklmnop", "jklmnopqr"
        ]  # fmt: skip
        statistics = session.statistics()
    assert max(model.together) == 3
    assert statistics.shared_calls == len(model.together)
    assert statistics.shared_tokens == sum(model.together)
    assert statistics.tokens == 45


def test_requests_of_another_priority_wait_and_are_not_in_the_same_call():
    model = AlphabetModel(most_together=4)
    with TextSession(model) as session:
        gate = Gate()
        model.before = gate
        high = session.start("a", Sampling(temperature=0, max_tokens=6), priority=1)
        wait_until(lambda: gate.calls)
        low = session.start("A", Sampling(temperature=0, max_tokens=6))
        gate.opened.set()
        assert [high.result().text, low.result().text] == ["bcdefg", "BCDEFG"]
    assert model.together == []


def test_one_call_for_each_where_the_limit_says_so():
    model = AlphabetModel(most_together=4)
    with TextSession(model, limits=TextLimits(together=1)) as session:
        streams = [session.start(letter, Sampling(temperature=0, max_tokens=6)) for letter in "aA"]
        assert [stream.result().text for stream in streams] == ["bcdefg", "BCDEFG"]
    assert model.together == []


def test_when_a_shared_call_fails_only_the_request_whose_fault_it_is_fails():
    model = AlphabetModel(most_together=3)

    def fail(ids):
        if ids[-1] == ord("q"):
            raise EngineError("no memory")

    with TextSession(model) as session:
        gate = Gate()
        model.before = gate
        streams = [session.start(letter, Sampling(temperature=0, max_tokens=8)) for letter in ("m", "A")]
        wait_until(lambda: gate.calls)
        model.before = fail
        gate.opened.set()
        with pytest.raises(EngineError, match="no memory"):
            streams[0].result()
        assert streams[1].result().text == "BCDEFGHI"
        assert session.statistics().requests["failed"] == 1


def test_guesses_give_the_same_text_in_fewer_calls():
    prompt, few = "hello abcdefghijklmnop abc", Sampling(temperature=0, max_tokens=12)
    plain, drafted = AlphabetModel(), AlphabetModel(most_scored=16)
    with TextSession(plain) as session:
        expected = session.start(prompt, few).result()
        assert session.statistics().drafted_tokens == 0
    with TextSession(drafted) as session:
        found = session.start(prompt, few).result()
        statistics = session.statistics()
    assert (found.text, found.tokens, found.finish) == (expected.text, expected.tokens, expected.finish)
    assert len(drafted.read) < len(plain.read) - 6
    assert 0 < statistics.accepted_tokens <= statistics.drafted_tokens


def test_guesses_that_are_wrong_change_nothing():
    prompt, few = "bcz bcz ab", Sampling(temperature=0, max_tokens=12)
    with TextSession(AlphabetModel()) as session:
        expected = session.start(prompt, few).result().text
    with TextSession(AlphabetModel(most_scored=16)) as session:
        assert session.start(prompt, few).result().text == expected
        assert session.statistics().accepted_tokens < session.statistics().drafted_tokens


def test_sampling_with_guesses_takes_the_same_random_tokens():
    prompt = "abcdefghij abcdefghij abcdefghij ab"
    with TextSession(AlphabetModel()) as plain, TextSession(AlphabetModel(most_scored=16)) as drafted:
        for seed in range(8):
            sampling = Sampling(temperature=4, top_k=40, repetition_penalty=1.1, seed=seed, max_tokens=60)
            assert drafted.start(prompt, sampling).result().text == plain.start(prompt, sampling).result().text
        assert drafted.statistics().drafted_tokens > 0


def test_a_stop_string_within_a_guess_ends_the_answer_there():
    with TextSession(AlphabetModel(most_scored=16)) as session:
        result = session.start("abcdefghijklmnop abc", stop=["gh"]).result()
        assert (result.text, result.finish) == ("def", "stop")
        assert session.statistics().accepted_tokens > 0


def test_an_answer_goes_on_from_one_whose_last_guess_was_not_needed():
    with TextSession(AlphabetModel(most_scored=16)) as session:
        prompt = "abcdefghijklmnop abc"
        first = session.start(prompt, FEW).result()
        second = session.start(prompt + first.text + "g", FEW).result()
    assert (first.text, second.text) == ("def", "hij")
    assert second.cached_tokens == len(prompt) + 2


def test_where_a_guess_leaves_the_likeliest_token_open_it_is_chosen_without():
    model = AlphabetModel(most_scored=16, noise=9.5)  # 10 against 9.5 is less than clear
    with TextSession(model, limits=TextLimits(drafts=7)) as session:
        assert session.start("abcdefghijklmnop abc", Sampling(temperature=0, max_tokens=8)).result().text == "defghijk"
        assert session.statistics().accepted_tokens == 0
        (event,) = session.events
    assert event.kind == "drafts-guarded"


@pytest.mark.parametrize(("limits", "sampling"), [(TextLimits(), FEW), (TextLimits(drafts=7), Sampling(seed=1))])
def test_nothing_is_guessed_where_it_would_change_the_answer(limits, sampling):
    with TextSession(AlphabetModel(most_scored=16, noise=0.1), limits=limits) as session:
        session.start("abcdefghijklmnop abc", sampling).result()
        assert session.statistics().drafted_tokens == 0


def test_guesses_that_the_engine_cannot_check_are_left_out_with_an_event():
    with TextSession(AlphabetModel(), limits=TextLimits(drafts=7)) as session:
        assert [event.kind for event in session.events] == ["drafts-off"]


def test_many_conversations_that_are_dropped_leave_nothing_behind(model):
    with TextSession(model, limits=TextLimits(conversations=4)) as session:
        for number in range(500):
            stream = session.start(f"conversation {number} [", Sampling(temperature=0, max_tokens=50))
            if number % 2:
                next(stream)
            del stream
        wait_until(lambda: not session.is_busy)
        statistics = session.statistics()
        assert sum(statistics.requests.values()) == 500
        assert len(model.open) == statistics.kept
        assert statistics.cache_tokens <= 2 * SPEC.context_length


@pytest.mark.parametrize(
    "limits", [{"conversations": 0}, {"waiting": -1}, {"cache_tokens": -1}, {"together": 0}, {"drafts": -1}]
)
def test_limits_below_what_is_possible_are_refused(limits):
    with pytest.raises(OptionError, match=f"limit {next(iter(limits))} is"):
        TextLimits(**limits)


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": -1}, {"top_p": 0}, {"top_k": -1}, {"repetition_penalty": 0}, {"seed": -1}, {"max_tokens": 0}],
)
def test_sampling_out_of_range_is_refused(sampling):
    with pytest.raises(OptionError, match=f"{next(iter(sampling))} is"):
        Sampling(**sampling)
