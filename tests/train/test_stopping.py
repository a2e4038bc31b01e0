"""Ctrl-C while one instruction keeps the interpreter busy: told at once; a second one ends the process, but no save."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from train.stopping import StopFlag

ROOT = Path(__file__).parents[2]
CHILD = """
import hashlib, sys
from train import stopping
stopping._PATIENCE_S = 0.5
flag = stopping.StopFlag(lambda line: print(line, flush=True))
with flag.installed():
    print("ready", flush=True)
    {body}
print("asked", flag(), flush=True)
"""
BUSY = "hashlib.pbkdf2_hmac('sha256', b'', b'', {rounds})"  # one instruction, in which no signal handler runs


def child(body: str) -> subprocess.Popen[str]:
    code = CHILD.format(body=body)
    started = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def test_it_is_told_at_once_and_a_second_one_ends_inside_the_step() -> None:
    process = child(BUSY.format(rounds=2_000_000_000))  # many minutes
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("SIGINT: the run is saved and ends")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert "ended inside a step" in out
    assert process.returncode == 130


def test_what_is_being_saved_is_not_ended() -> None:
    process = child("with flag.undisturbed(): print('saving', flush=True); " + BUSY.format(rounds=12_000_000))
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("asked False\n", 0)


def test_a_save_beside_the_training_ends_first() -> None:
    body = """
    import threading, time
    def save() -> None:
        time.sleep(4)
        print("saved", flush=True)
    threading.Thread(target=save, name=stopping.SAVING_THREAD).start()
    hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)
    """
    process = child(body)
    assert process.stdout is not None
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    out, _ = process.communicate(timeout=60)
    saved, ended = out.splitlines()[1:]
    assert saved == "saved"
    assert ended.startswith("ended inside a step")
    assert process.returncode == 130


def test_a_last_save_meanwhile_is_an_answer() -> None:
    """The step ends after all while the listener waits for a save beside it: what follows is the run's own end."""
    body = f"""
    import threading, time
    over = threading.Event()  # however long the busy step takes here
    threading.Thread(target=over.wait, name=stopping.SAVING_THREAD).start()
    {BUSY.format(rounds=12_000_000)}
    with flag.undisturbed(): time.sleep(0.1)
    over.set()
    time.sleep(2)
    """
    process = child(body)
    for _ in range(2):
        time.sleep(0.3)  # until it is busy
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "asked True"
    assert process.returncode == 0


def test_two_in_one_step_are_answered_by_the_save_that_follows() -> None:
    """The main thread hears of both at once, and goes on to the end of its step: nobody ends it meanwhile."""
    body = "stopping._PATIENCE_S = 30.0; " + BUSY.format(rounds=20_000_000) + "; import time; time.sleep(1)"
    process = child(body)
    for _ in range(2):
        time.sleep(0.3)  # until it is busy
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "asked True"
    assert process.returncode == 0


def test_a_forked_childs_signals_are_its_own() -> None:
    body = """
    import os, signal, time
    if not (pid := os.fork()):
        time.sleep(30)
        os._exit(0)
    time.sleep(0.3)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    time.sleep(0.3)
    """
    out, _ = child(body).communicate(timeout=60)
    assert out == "asked False\n"


def test_where_handlers_run_the_second_one_raises_in_the_main_thread() -> None:
    body = """
    try:
        for _ in range(600): hashlib.pbkdf2_hmac('sha256', b'', b'', 100_000)
    except KeyboardInterrupt:
        print("raised", flush=True)
    """
    process = child(body)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)  # two that come before the main thread answers are one to it
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-2:] == ["raised", "asked True"]
    assert process.returncode == 0


def test_everything_is_as_before_behind_the_block() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    said: list[str] = []
    with StopFlag(said.append).installed():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before
    woken = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(woken)
    assert (woken, said) == (-1, [])
