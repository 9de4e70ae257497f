"""Gathers every byte that a run on Optuna leaves, by sink."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import pickle
import struct
import sys
import threading
import warnings
from functools import partial

import numpy as np
import optuna

from tests.boards import answers
from tests.leaks.hostile import PAYLOAD

SINKS = (
    "storage", "attributes", "log", "console", "warnings", "pickles", "texts", "report",
    "dashboard", "messages", "vault",
)  # fmt: skip
"""Files of the study, what its records show, loggers at DEBUG, stdout and stderr, warnings,
pickles, what a user prints, the page for people, what parties send each other, and the vault's
file in the end."""

_LOUD = ("", "sqlalchemy.engine", "sqlalchemy.pool", "sqlalchemy.orm", "alembic", "privbo")


def home_of(name):
    """Whose an artefact is: "agent 1: " of "agent 1: x", and nobody's is "x"."""
    head, mark, _ = name.partition(": ")
    return head + mark if mark and head.startswith("agent") else ""


class _Log(logging.Handler):
    """What loggers say, by thread, and by whether a study's host says it.

    Optuna and its database's driver quote the study that they work for.
    """

    def __init__(self):
        super().__init__()
        self.lines = {}

    def emit(self, record):
        host = record.name.startswith(("optuna.", "sqlalchemy."))
        key = threading.current_thread().name, host
        self.lines.setdefault(key, []).append(f"{record.name} {self.format(record)}")


@contextlib.contextmanager
def _loggers(handler):
    levels = {name: logging.getLogger(name).level for name in _LOUD}
    verbosity = optuna.logging.get_verbosity()
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.DEBUG)
    root = logging.getLogger()
    others, root.handlers = root.handlers, [handler]
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    optuna.logging.disable_default_handler()  # its stream is what stderr was when it was made
    optuna.logging.enable_propagation()
    try:
        yield
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.enable_default_handler()
        optuna.logging.set_verbosity(verbosity)
        root.handlers = others
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _descriptor(number, path):
    """Sends what is written to a descriptor to a file, and yields a stream to the same file."""
    kept = os.dup(number)
    with path.open("w+", errors="backslashreplace") as file:
        os.dup2(file.fileno(), number)
        try:
            yield file
        finally:
            os.dup2(kept, number)
            os.close(kept)


class Evidence:
    """What one run leaves, and whose secrets must not be among it.

    Attributes:
        folder: Where files of the study lie; the vault's lies in ``vault_folder``.
        secrets: One, or one of each agent: what begins with "agent 1: " may hold that one's.
        expected: Of a careless run, what must be found in each sink.
        never: Beginnings of hits that even there would be wrong.
        withheld: What must not be found in any sink, though its run was careless.
        blobs: Sink to name to bytes.
    """

    def __init__(self, folder, storage="sqlite"):
        self.folder, self.kind = folder / "shared", storage
        self.vault_folder = folder / "private"
        self.folder.mkdir()
        self.vault_folder.mkdir()
        self.vault = f"sqlite:///{self.vault_folder}/vault.db"
        self.secrets = []
        self.expected = {sink: set() for sink in SINKS}
        self.never = ()
        self.withheld = set()
        self.blobs = {sink: {} for sink in SINKS}

    def of(self, own):
        """Enters whose secrets there are, and returns them."""
        self.secrets.append(own)
        return own

    def expect(self, sink, hit):
        """Says what must be found in a sink."""
        self.expected[sink].add(hit)

    # What is gathered -----------------------------------------------------------------------

    def storage(self):
        if self.kind == "sqlite":
            return f"sqlite:///{self.folder}/study.db"
        file = optuna.storages.journal.JournalFileBackend(f"{self.folder}/study.log")
        return optuna.storages.JournalStorage(file)

    def add(self, sink, name, data):
        blob = data if isinstance(data, bytes) else data.encode(errors="backslashreplace")
        self.blobs[sink][name] = blob

    def add_files(self, when="at the end"):
        for path in self.folder.iterdir():
            home = f"agent {path.name[6]}: " if path.name.startswith("agent-") else ""
            with contextlib.suppress(FileNotFoundError):  # a lock that another thread held
                self.add("storage", f"{home}{path.name} {when}", path.read_bytes())

    def add_vault(self):
        for path in self.vault_folder.iterdir():
            self.add("vault", path.name, path.read_bytes())

    def add_objects(self, when="", home="", **objects):
        for name, thing in objects.items():
            self.add("texts", f"{home}repr of {name} {when}", repr(thing) + str(thing))
            self.add("pickles", f"{home}pickle of {name} {when}", pickle.dumps(thing))
            for library in ("joblib", "cloudpickle"):
                if importlib.util.find_spec(library):
                    file = io.BytesIO()
                    importlib.import_module(library).dump(thing, file)
                    self.add("pickles", f"{home}{library} of {name} {when}", file.getvalue())

    def add_messages(self, home="", **messages):
        """What parties send each other."""
        for name, message in messages.items():
            self.add("messages", f"{home}repr of {name}", repr(message))
            self.add("messages", f"{home}pickle of {name}", pickle.dumps(message))

    def add_guarantee(self, guarantee, home=""):
        text = str(guarantee) + repr(guarantee)
        if hasattr(guarantee, "to_dict"):
            text += repr(guarantee.to_dict())
        self.add("texts", f"{home}guarantee", text)

    refusals: tuple[type[Exception], ...] = ()
    """What may be raised in the place of an answer, and is looked at then."""

    def answer(self, ask, *given):
        """What is answered, or None in the place of a refusal."""
        try:
            return ask(*given)
        except self.refusals as error:
            self.add_error(error)
            return None

    def add_error(self, error):
        """What was raised."""
        raise error

    def add_told(self, told, *study, home="", page="report"):
        """What whoever tells of a run answers to every question, and its page and pictures.

        Args:
            told: A sampler or an objective, with its study, or a search, which knows its run.
            study: That study.
            home: Whose answers these are.
            page: The name of the page, which is for everybody.
        """
        self.add_guarantee(told.guarantee(*study), home)
        for question in ("recommend", "history", "status"):
            if callable(ask := getattr(told, question, None)):
                self.add_objects(home=home, **{question: self.answer(ask, *study)})
        self.answer(self.add_report, partial(told.report, *study), page)
        if study:
            self.answer(self.add_dashboard, *study, told, home)

    def add_report(self, write, name="report"):
        """The page that a report writes."""
        with warnings.catch_warnings(action="ignore"):
            page = write(self.folder.parent / "report.html").read_bytes()
        assert page.startswith(b"<!doctype html>")
        self.add("report", name, page)

    def add_dashboard(self, study, publisher, home=""):
        """What the study shows in optuna-dashboard, as stored and as served."""
        with warnings.catch_warnings(action="ignore"):
            publisher.publish(study)
        stored = study._storage.get_study_system_attrs(study._study_id)
        shown = {name for name in stored if name.startswith("dashboard:")}
        assert "dashboard:note_str:0" in shown
        self.add("dashboard", f"{home}stored", repr({name: stored[name] for name in shown}))
        if importlib.util.find_spec("optuna_dashboard"):
            for path, body in answers(study._storage, study._study_id).items():
                self.add("dashboard", f"{home}{path}", body)

    def _callback(self, study, trial):
        if trial.number % 16 == 3:
            self.add_files(f"after trial {trial.number}")
            when = f"after trial {trial.number}"
            self.add_objects(when, study=study, sampler=study.sampler)
        self.add("attributes", f"trial {trial.number}", repr(trial) + repr(vars(trial)))

    @contextlib.contextmanager
    def recorded(self, *, hosts=True):
        """Loggers at DEBUG, warnings and the console.

        Args:
            hosts: Whether what Optuna and its database's driver say is kept: in one thread they
                say what each of many agents tells its own study.
        """
        log, console = _Log(), self.vault_folder.parent
        with (
            _loggers(log),
            warnings.catch_warnings(record=True) as caught,
            _descriptor(1, console / "stdout") as out,
            _descriptor(2, console / "stderr") as err,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.simplefilter("always")
            for number in (1, 2):
                os.write(number, b"recorded\n")
            logging.getLogger("privbo").debug("recorded")
            yield
            sys.stdout.flush()
            sys.stderr.flush()
        for stream in ("stdout", "stderr"):
            self.add("console", stream, (console / stream).read_bytes())
        self.add("warnings", "warnings", "\n".join(f"{w.category} {w.message}" for w in caught))
        for (thread, host), lines in log.lines.items():
            if hosts or not host:
                home = f"agent {thread[6:]}: " if host and thread.startswith("agent-") else ""
                self.add("log", f"{home}{thread}, host: {host}", "\n".join(lines))

    def optimize(self, sampler, objective, n_trials, n_jobs=1):
        """Runs a study while everything is recorded, and gathers what it leaves."""
        study = optuna.create_study(storage=self.storage(), study_name="s", sampler=sampler)
        with self.recorded():
            study.optimize(
                objective, n_trials=n_trials, n_jobs=n_jobs, catch=(Exception,),
                callbacks=[self._callback], show_progress_bar=n_jobs == 1,
            )  # fmt: skip
        self.add_files()
        self.add_objects("in the end", study=study, sampler=sampler, trials=study.trials)
        self.add("texts", "repr of objective", repr(objective))
        self.add("attributes", "of the study", repr(study.user_attrs))
        if importlib.util.find_spec("pandas"):
            self.add("texts", "dataframe", study.trials_dataframe().to_csv())
        return study

    def text(self, sink):
        """All that was gathered in a sink."""
        return b"\n".join(self.blobs[sink].values()).decode(errors="replace")

    # What is found --------------------------------------------------------------------------

    def allow(self, trials):
        """The progress bar shows six digits of released values."""
        values = [abs(trial.value) for trial in trials if trial.value is not None]
        params = [v for trial in trials for v in trial.params.values() if isinstance(v, float)]
        for own in self.secrets:
            own.scanner.allow([*values, *np.abs(params)])

    def hits(self, sink, *, at_home=False):
        """Of secrets that are not at home, or that are: "artefact | secret as encoding"."""
        return [
            f"{name} | {hit}"
            for own in self.secrets
            for name, blob in self.blobs[sink].items()
            if (bool(own.home) and home_of(name) == own.home) == at_home
            for hit in own.hits(name, blob)
        ]

    def payloads(self, sink):
        """Where the bits of a NaN are."""
        payload = struct.pack("<d", PAYLOAD)
        return [n for n, b in self.blobs[sink].items() if payload in b or payload[::-1] in b]
