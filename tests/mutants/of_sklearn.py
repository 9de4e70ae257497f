"""Slips in the search for scikit-learn: who is held out, and what is kept of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HOST = "sklearn_search"
_SEARCH = "tests/sklearn_search/test_search.py"
_TYPES = "tests/sklearn_search/test_types.py"
_LEAKS = "tests/sklearn_search/test_leaks.py"

MUTANTS = (
    Mutant(
        name="split_by_the_seed",
        breaks="Which records are held out never changes with the seed.",
        file=f"{_HOST}/_search.py",
        old='"random_state": given.random_state}',
        new='"random_state": given.seed or 0}',
        tests=(f"{_SEARCH}::test_a_seed_does_not_decide_who_is_held_out_and_random_state_does",),
    ),
    Mutant(
        name="refit_on_all_records",
        breaks="No validation record reaches the model that a search hands out.",
        file=f"{_HOST}/_records.py",
        old="        return model.fit(self.records.X, *y, **self.records.fit_params)\n",
        new=(
            "        y = (np.r_[self.records.y, self.records.y_valid],)\n"
            "        return model.fit(np.r_[self.records.X, self.records.X_valid], *y)\n"
        ),
        tests=(
            f"{_SEARCH}::test_without_noise_it_finds_what_a_study_driven_by_hand_finds",
            f"{_SEARCH}::test_a_label_does_not_decide_who_is_held_out",
        ),
    ),
    Mutant(
        name="one_record_ends_the_predictions_of_all",
        breaks="A record that the model cannot predict decides nothing of the others.",
        file=f"{_HOST}/_records.py",
        old="others = np.where(predicted, places, places[predicted][0])",
        new="others = places",
        tests=(
            "tests/sklearn_search/test_types.py"
            "::test_a_record_that_cannot_be_predicted_decides_nothing_of_the_others",
        ),
    ),
    Mutant(
        name="warnings_of_predictions",
        breaks="What predicting warns of a validation record is not heard.",
        file=f"{_HOST}/_records.py",
        old='            warnings.simplefilter("ignore")\n',
        new="",
        tests=(f"{_LEAKS}::test_what_predicting_warns_of_is_not_heard",),
    ),
    Mutant(
        name="types_of_all_records",
        breaks="A model keeps no category and no width of text of validation records alone.",
        file=f"{_HOST}/_records.py",
        old="    X, y = of_training(X), of_training(y, labels=labels)\n",
        new="",
        tests=(
            f"{_LEAKS}::test_a_label_of_a_validation_record_does_not_widen_what_a_model_keeps",
        ),
    ),
    Mutant(
        name="types_of_validation_records",
        breaks="Validation records are scored in the types of the training records.",
        file=f"{_HOST}/_records.py",
        old='as_in_training(X, X_valid, "")',
        new="X_valid",
        tests=(f"{_TYPES}::test_one_row_of_a_validation_table_decides_no_type",),
    ),
    Mutant(
        name="records_in_the_search",
        breaks="A fitted search holds no validation record.",
        file=f"{_HOST}/_search.py",
        old="        self.n_valid_ = task.records.n_valid\n",
        new="        self.n_valid_ = task.records.n_valid\n        self.task_ = task\n",
        tests=(
            f"{_LEAKS}::test_nothing_that_a_fitted_search_holds_on_to_leads_to_a_validation_record",
            f"{_LEAKS}::test_neither_records_nor_losses_are_in_what_a_fitted_search_shows",
        ),
    ),
    Mutant(
        name="frames_that_hold_records",
        breaks="An exception out of fit holds no validation record.",
        file=f"{_HOST}/_search.py",
        old="            frame.clear()\n",
        new="            pass\n",
        tests=(
            "tests/contracts/test_leaks_frames.py"
            "::test_what_leaves_a_search_leads_to_no_validation_record",
        ),
    ),
    Mutant(
        name="published_model_trains_for_nothing",
        breaks="The model that a search publishes is charged to the training records.",
        file=f"{_HOST}/_optuna.py",
        old="        private._charge_refit(study)\n",
        new="        pass\n",
        tests=(f"{_SEARCH}::test_each_fit_to_the_training_records_is_charged_before_it_happens",),
    ),
    Mutant(
        name="losses_outlive_the_search",
        breaks="Memory holds no losses once nothing can need them.",
        file=f"{_HOST}/_optuna.py",
        old="        _forget(given, study, verbs)\n",
        new="",
        tests=(
            f"{_SEARCH}::test_losses_that_wait_in_memory_when_time_runs_out_are_gone_with_the_search",
        ),
    ),
    Mutant(
        name="objects_by_their_repr",
        breaks="Of a choice that is an object no more than its type is stored.",
        file=f"{_HOST}/_space.py",
        old="""    return f"{index}: {getattr(choice, '__name__', type(choice).__name__)}"\n""",
        new='    return f"{index}: {choice!r}"\n',
        tests=(
            "tests/sklearn_search/test_space.py::test_of_an_object_nothing_but_its_type_is_stored",
        ),
    ),
)
