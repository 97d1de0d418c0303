from __future__ import annotations

import mmap

import psutil
import pytest

from sanderling.run.sensors import read_memory
from tests.unit.run.sensors.trees import put

_MIB = 1 << 20
_V2_MOUNT = "30 23 0:26 {shown} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
_V1_MOUNT = "36 31 0:33 {shown} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"


def put_v2(root, group, *, used, limit, idle=0):
    folder = root / "sys/fs/cgroup" / group
    put(folder, **{"memory.current": str(used), "memory.max": str(limit)})
    put(folder, **{"memory.stat": f"anon 1\nfile 7\ninactive_file {idle}\nactive_file 3"})


def put_v1(root, group, *, used, limit, idle=0):
    folder = root / "sys/fs/cgroup/memory" / group
    put(folder, **{"memory.usage_in_bytes": str(used), "memory.limit_in_bytes": str(limit)})
    put(folder, **{"memory.stat": f"inactive_file 1\ntotal_inactive_file {idle}"})


def put_process(root, cgroup, mount, *, shown="/"):
    put(root, proc__self__cgroup=cgroup, proc__self__mountinfo=f"23 1 0:1 / / rw - ext4 /dev/vda rw\n{mount}")
    path = root / "proc/self/mountinfo"
    path.write_text(path.read_text().replace("{shown}", shown))


def test_container_of_version_2_counts_its_usage_without_idle_file_cache(tmp_path):
    put_process(tmp_path, "0::/", _V2_MOUNT)
    put_v2(tmp_path, "", used=300 * _MIB, limit=512 * _MIB, idle=100 * _MIB)
    found = read_memory(tmp_path)
    assert (found.used_bytes, found.limit_bytes, found.scope) == (200 * _MIB, 512 * _MIB, "container")


def test_container_of_version_1_is_found_among_its_controllers(tmp_path):
    put_process(tmp_path, "5:devices:/\n4:cpu,memory:/worker\n0::/", _V1_MOUNT)
    put_v1(tmp_path, "worker", used=300 * _MIB, limit=512 * _MIB, idle=50 * _MIB)
    found = read_memory(tmp_path)
    assert (found.used_bytes, found.limit_bytes, found.scope) == (250 * _MIB, 512 * _MIB, "container")


def test_of_nested_groups_the_one_with_the_least_left_counts(tmp_path):
    put_process(tmp_path, "0::/pod/worker", _V2_MOUNT)
    put_v2(tmp_path, "pod", used=490 * _MIB, limit=500 * _MIB)
    put_v2(tmp_path, "pod/worker", used=10 * _MIB, limit=100 * _MIB)
    found = read_memory(tmp_path)
    assert (found.used_bytes, found.limit_bytes) == (490 * _MIB, 500 * _MIB)


def test_group_without_a_limit_inherits_that_of_the_group_around_it(tmp_path):
    put_process(tmp_path, "0::/pod/worker", _V2_MOUNT)
    put_v2(tmp_path, "pod", used=90 * _MIB, limit=500 * _MIB)
    put_v2(tmp_path, "pod/worker", used=10 * _MIB, limit="max")
    assert read_memory(tmp_path).limit_bytes == 500 * _MIB


def test_path_of_the_host_is_read_below_what_the_container_shows_of_it(tmp_path):
    put_process(tmp_path, "4:memory:/docker/abc/inner", _V1_MOUNT, shown="/docker/abc")
    put_v1(tmp_path, "inner", used=3 * _MIB, limit=64 * _MIB)
    assert read_memory(tmp_path).limit_bytes == 64 * _MIB


@pytest.mark.parametrize("path", ["/../elsewhere", "/docker/other"])
def test_path_that_is_not_shown_here_means_the_group_that_is(tmp_path, path):
    put_process(tmp_path, f"0::{path}", _V2_MOUNT, shown="/docker/abc")
    put_v2(tmp_path, "", used=3 * _MIB, limit=64 * _MIB)
    assert read_memory(tmp_path).limit_bytes == 64 * _MIB


def test_mount_point_with_a_blank_is_found(tmp_path):
    put_process(tmp_path, "0::/", _V2_MOUNT.replace("/sys/fs/cgroup", "/my\\040groups"))
    put(tmp_path / "my groups", **{"memory.current": "4096", "memory.max": "8192"})
    assert read_memory(tmp_path).limit_bytes == 8192


@pytest.mark.parametrize("limit", ["max", str(1 << 60), "9223372036854771712", "", "many"])
def test_container_without_a_limit_counts_the_machine(tmp_path, limit):
    put_process(tmp_path, "0::/", _V2_MOUNT)
    put_v2(tmp_path, "", used=3 * _MIB, limit=limit)
    found = read_memory(tmp_path)
    assert (found.limit_bytes, found.scope) == (psutil.virtual_memory().total, "machine")
    assert 0 < found.used_bytes < found.limit_bytes


def test_system_without_control_groups_counts_the_machine(tmp_path):
    assert read_memory(tmp_path).scope == "machine"


@pytest.mark.parametrize("text", ["", "garbage", "0:", "1:2", "::::"])
def test_control_groups_that_are_not_understood_count_the_machine(tmp_path, text):
    put_process(tmp_path, text, f"{text}\n12 -\n - cgroup2\n{_V2_MOUNT}")
    assert read_memory(tmp_path).scope == "machine"


def test_resident_bytes_are_of_this_process():
    held = mmap.mmap(-1, 64 * _MIB)  # pages of their own: freed heap would stay with the process
    held.write(b"\1" * len(held))
    with_it = read_memory().resident_bytes
    held.close()
    assert with_it - read_memory().resident_bytes > 32 * _MIB


def test_memory_of_this_machine_can_be_read():
    found = read_memory()
    assert 0 < found.resident_bytes < found.limit_bytes <= psutil.virtual_memory().total
    assert found.used_bytes >= 0
