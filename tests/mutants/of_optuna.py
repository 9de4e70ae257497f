"""Slips in the samplers: what an Optuna study would store, show or claim."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HOST = "optuna_samplers"
_TESTS = "tests/optuna_samplers"
_MATRIX = "tests/contracts/test_optuna_matrix.py"
_CUT_OFF = "tests/contracts/test_claims_cut_off.py"

MUTANTS = (
    Mutant(
        name="retry_under_its_own_name",
        breaks="A trial that Optuna retries shows the release of the trial that it repeats.",
        file=f"{_HOST}/_study.py",
        old='str(trial.system_attrs.get("failed_trial", trial.number))',
        new="str(trial.number)",
        tests=(
            f"{_TESTS}/test_lifecycle.py::test_a_stale_trial_is_retried_under_its_own_name",
            f"{_TESTS}/test_ldp_lifecycle.py::test_a_retry_shows_the_same_release",
        ),
    ),
    Mutant(
        name="scores_of_a_search_cv",
        breaks="A private sampler runs no objective that stores scores as they are.",
        file=f"{_HOST}/_sampler.py",
        old="            refuse_search_cv(type(self).__name__)\n",
        new="            pass\n",
        tests=(f"{_MATRIX}::test_what_the_page_says_of_optuna_is_so[`OptunaSearchCV`-DP-GIBO]",),
    ),
    Mutant(
        name="objective_writes_attributes",
        breaks="A private objective writes nothing into its study unless it is vouched for.",
        file=f"{_HOST}/_guard.py",
        old='        self._vouched("set_user_attr", public, _text(key))\n',
        new="",
        tests=(
            f"{_TESTS}/test_lifecycle.py::test_a_private_objective_cannot_write_into_the_study",
        ),
    ),
    Mutant(
        name="mean_loss_in_an_attribute",
        breaks="A study holds no function of raw losses but releases.",
        file=f"{_HOST}/_base.py",
        old="trial.set_user_attr(ROLE_ATTR, label)",
        new='trial.set_user_attr(ROLE_ATTR, f"{label}, {sum(losses) / len(losses):.6f}")',
        tests=("tests/contracts/test_leaks_optuna.py::test_no_secret_reaches_a_sink",),
    ),
    Mutant(
        name="error_keeps_its_frames",
        breaks="An error out of a release holds no frame with raw losses.",
        file=f"{_HOST}/_base.py",
        old='            return float("nan"), sanitized(error)\n',
        new='            return float("nan"), error\n',
        tests=(
            "tests/contracts/test_leaks_exceptions.py::test_errors_of_tell_private_hold_no_data",
            "tests/contracts/test_leaks_exceptions.py"
            "::test_errors_inside_a_release_hold_no_losses",
        ),
    ),
    Mutant(
        name="pickled_noise",
        breaks="A pickled sampler holds no source of noise, which could be replayed.",
        file=f"{_HOST}/_base.py",
        old='{"_vault": None, "_noise": None, "_labels": None}',
        new='{"_vault": None, "_labels": None}',
        tests=(f"{_TESTS}/test_lifecycle.py::test_a_pickle_holds_neither_noise_nor_vault",),
    ),
    Mutant(
        name="warning_swallowed",
        breaks="Whoever loses all protection is warned.",
        file=f"{_HOST}/_base.py",
        old="            own.warned = True\n"
        "            warnings.warn(\n"
        '                f"Nothing is protected: {reason}. {fix}".strip(), '
        "PrivacyWarning, stacklevel=2\n"
        "            )\n",
        new="            own.warned = True\n",
        tests=(f"{_TESTS}/test_lifecycle.py::test_plain_floats_are_searched_but_not_protected",),
    ),
    Mutant(
        name="claim_before_looking",
        breaks="A study claims nothing before all that it holds was compared with the releases.",
        file=f"{_HOST}/_base.py",
        old="        self._audit(study, own)\n        failed = ",
        new="        failed = ",
        tests=(
            "tests/contracts/test_guarantee_claims.py"
            "::test_raw_values_are_noticed_by_an_objective_under_another_sampler",
        ),
    ),
    Mutant(
        name="computed_constants_are_stored",
        breaks="A private objective's constants are compared before anything of them is stored.",
        file=f"{_HOST}/_guard.py",
        old="                self._check(name, _SUGGESTED[method](*args, **kwargs))\n",
        new="",
        tests=(
            "tests/contracts/test_leaks_constants.py"
            "::test_a_computed_constant_reaches_the_study_in_the_first_trial_at_most",
            "tests/contracts/test_leaks_constants.py"
            "::test_a_computed_range_is_refused_before_it_is_stored",
        ),
    ),
    Mutant(
        name="stored_claim_falls_behind",
        breaks="What a study stores of a claim says no less than its ledger, wherever it stops.",
        file=f"{_HOST}/_study.py",
        old="""        study.set_user_attr(GUARANTEE_ATTR, guarantee.lasting)""",
        new="""        study.set_user_attr(GUARANTEE_ATTR, str(guarantee))""",
        tests=(
            f"{_CUT_OFF}::test_whatever_is_stored_says_no_less_than_the_ledger_wherever_a_run_is_cut_off",
        ),
    ),
    Mutant(
        name="forged_claim_agrees",
        breaks="A study agrees with a certificate only if it shows the vault's claim.",
        file=f"{_HOST}/_compared.py",
        old="    if told != run.guarantee.lasting:\n",
        new="    if told[:40] != run.guarantee.lasting[:40]:\n",
        tests=(f"{_CUT_OFF}::test_verify_compares_the_paragraph_of_a_study_to_the_letter",),
    ),
    Mutant(
        name="retries_train_for_nothing",
        breaks="Every attempt of a trial pays for its training.",
        file=f"{_HOST}/_base.py",
        old="            own.prepaid.discard(number)\n",
        new="            pass\n",
        tests=(
            f"{_TESTS}/test_lifecycle.py::test_an_objective_called_again_on_one_trial_pays_again",
        ),
    ),
    Mutant(
        name="a_study_that_remembers_nothing",
        breaks="A study refuses its vault after an older backup was restored.",
        file=f"{_HOST}/_base.py",
        old="            session.run.guarded_by(StudyRollbackGuard(study, session.run))\n",
        new="            pass\n",
        tests=(
            "tests/contracts/test_faults_put_back.py"
            "::test_a_study_refuses_a_vault_that_was_put_back[records]",
        ),
    ),
    Mutant(
        name="attributes_by_their_beginning",
        breaks="Attributes of a study are the samplers' own by name and form only.",
        file=f"{_HOST}/_study.py",
        old="    return found is not None and known in",
        new='    return name.startswith("privbo:") or known in',
        tests=(
            "tests/contracts/test_guarantee_claims.py"
            "::test_an_invented_attribute_of_the_plugins_name_is_named",
        ),
    ),
)
