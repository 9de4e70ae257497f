"""Threads of one study that look at its trials at once, and while others write there."""

import optuna

from optuna_samplers._audit import Audit


class Meanwhile(set):
    """Numbers of trials; another thread goes on between the first question and its answer."""

    do = None

    def __contains__(self, number):
        do, self.do = self.do, None
        if do is not None:
            do()
        return super().__contains__(number)


def test_of_threads_that_look_at_once_none_skips_a_trial():
    study, looked = optuna.create_study(), []
    audit = Audit(lambda trials: looked.extend(t.number for t in trials) or (), lambda *_: None)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    audit.look(study)
    running = study.ask()
    audit.seen = Meanwhile(audit.seen)
    audit.seen.do = lambda: audit.look(study)
    audit.look(study)
    study.tell(running, 0.5)
    looked.clear()
    audit.look(study)
    assert looked == [1]


def test_what_is_looked_at_stays_while_its_own_thread_writes():
    study = optuna.create_study()
    study.enqueue_trial({}, user_attrs={"first": 1})
    running, names = study.ask(), []

    def unexplained(trials):
        for name in trials[0].user_attrs:
            running.set_user_attr("second", 1)
            names.append(name)
        return ()

    Audit(unexplained, lambda *_: None).look(study)
    assert names == ["first"]
