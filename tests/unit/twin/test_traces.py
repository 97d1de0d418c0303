import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.core.errors import DataError, OptionError
from sanderling.run.policy import NEVER
from sanderling.twin.traces import COLUMNS, read_csv, specified, trace_of

MIXED = "camera:a@30fps×2,deadline=33,jitter=3+poisson:b@40/s,deadline=50,priority=-1+bursty:a@5/s,burst=80/s,rows=2"


def write_csv(path, trace):
    lines = [",".join(COLUMNS)]
    for index in range(len(trace)):
        deadline_ms = float(trace.deadline_ms[index])
        due = "" if deadline_ms == NEVER else repr(deadline_ms)
        name = trace.models[trace.model[index]]
        lines.append(f"{float(trace.time_ms[index])!r},{name},{due},{trace.priority[index]},{trace.rows[index]}")
    path.write_text("\n".join(lines) + "\n")


def csv_file(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_streams_are_merged_by_time_with_their_own_values():
    trace = specified(MIXED, minutes=1, seed=1)
    assert trace.models == ("a", "b")
    assert (np.diff(trace.time_ms) >= 0).all()
    assert set(trace.deadline_ms[trace.model == 1]) == {50}
    assert set(trace.priority[trace.model == 1]) == {-1}
    assert set(zip(trace.rows[trace.model == 0], trace.deadline_ms[trace.model == 0], strict=True)) == {
        (1, 33),
        (2, NEVER),
    }


def test_two_cameras_send_sixty_frames_a_second_at_even_distances():
    trace = specified("camera:a@30fps×2", minutes=1, seed=3)
    assert abs(len(trace) - 3600) <= 2
    assert np.allclose(np.diff(trace.time_ms[::2]), 1e3 / 30)


def test_a_poisson_stream_keeps_its_rate_and_its_spread():
    gaps = np.diff(specified("poisson:a@50/s", minutes=20, seed=5).time_ms)
    assert gaps.mean() == pytest.approx(20, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_a_bursty_stream_spreads_wider_than_a_poisson_stream():
    counts = np.histogram(specified("bursty:a@10/s,burst=90,calm=8,busy=2", minutes=60, seed=5).time_ms, 3600)[0]
    assert counts.mean() == pytest.approx(26, rel=0.15)
    assert counts.var() > 5 * counts.mean()


@given(st.integers(0, 2**32))
def test_a_seed_gives_the_same_trace_again(seed):
    first, second = (specified(MIXED, minutes=0.05, seed=seed) for _ in range(2))
    assert np.array_equal(first.time_ms, second.time_ms)
    assert np.array_equal(first.model, second.model)


def test_a_written_trace_reads_as_it_was(tmp_path):
    trace = specified(MIXED, minutes=0.1, seed=2)
    write_csv(tmp_path / "trace.csv", trace)
    again = read_csv(tmp_path / "trace.csv")
    names, names_again = (np.array(found.models)[found.model] for found in (trace, again))
    assert (names == names_again).all()
    for field in ("time_ms", "deadline_ms", "priority", "rows"):
        assert np.array_equal(getattr(trace, field), getattr(again, field))


def test_columns_after_the_model_may_be_empty_or_missing(tmp_path):
    trace = read_csv(csv_file(tmp_path, "time_ms,model,deadline_ms\n0,a,\n1.5,b,20\n"))
    assert trace.deadline_ms.tolist() == [NEVER, 20]
    assert trace.rows.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: columns are ''"),
        ("model,time_ms\n", "line 1: columns are 'model,time_ms'"),
        ("time_ms,model,size\n", "line 1"),
        ("time_ms,model\n0,a\n1\n", "line 3: 1 values, the first line names 2"),
        ("time_ms,model\n5,a\n4,a\n", "line 3: time_ms 4 is before the line above, 5"),
        ("time_ms,model\nsoon,a\n", "line 2: time_ms 'soon'"),
        ("time_ms,model\nnan,a\n", "line 2: time_ms 'nan'"),
        ("time_ms,model\n0,\n", "line 2: model is empty"),
        ("time_ms,model,deadline_ms\n0,a,-3\n", "line 2: deadline_ms '-3'"),
        ("time_ms,model,rows\n0,a,1.5\n", "line 2: rows '1.5' is no whole number"),
        ("time_ms,model\n", "holds no request"),
    ],
)
def test_a_faulty_file_is_one_error_that_names_the_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        trace_of(str(csv_file(tmp_path, text)), minutes=None, seed=0)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        trace_of(str(tmp_path / "none.csv"), minutes=None, seed=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poison:a@4/s", "is neither a CSV file nor of the form"),
        ("poisson:a", "is neither a CSV file nor of the form"),
        ("poisson:a@fast", "rate 'fast' is not of the form"),
        ("poisson:a@0/s", "rate '0' is no number"),
        ("camera:a@30fps×0", "0 streams"),
        ("poisson:a@4/s,deadline", "'deadline' is not of the form key=value"),
        ("poisson:a@4/s,deadline=-1", "deadline '-1' is no number"),
        ("poisson:a@4/s,deadline=1,deadline=2", "there twice"),
        ("poisson:a@4/s,burst=2", "unknown 'burst' of a poisson stream"),
        ("poisson:a@900000/s", "at most 20000000 are played at once"),
    ],
)
def test_a_faulty_specification_is_one_error(text, message):
    with pytest.raises(OptionError, match=message):
        trace_of(text, minutes=1, seed=0)


def test_minutes_cut_a_file_and_stretch_a_specification(tmp_path):
    path = csv_file(tmp_path, "time_ms,model\n0,a\n59999,a\n60000,a\n")
    assert len(trace_of(str(path), minutes=1, seed=0)) == 2
    assert trace_of("camera:a@1fps", minutes=2, seed=0).time_ms[-1] > 110e3
    with pytest.raises(OptionError, match="-1 minutes"):
        trace_of("camera:a@1fps", minutes=-1, seed=0)
