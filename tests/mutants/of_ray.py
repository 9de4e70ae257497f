"""Slips in the searchers: what Ray's workers, actors and files would show."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HOST = "raytune_searchers"
_TESTS = "tests/raytune_searchers"

MUTANTS = (
    Mutant(
        name="report_is_open",
        breaks="tune.report is closed while a private trainable runs in its worker.",
        file=f"{_HOST}/_closing.py",
        old="        setattr(session, name, _refusing(refuse, own))\n",
        new="        setattr(session, name, own)\n",
        tests=(
            f"{_TESTS}/test_guards.py"
            "::test_a_report_ends_the_trial_says_what_to_do_and_writes_no_result",
        ),
    ),
    Mutant(
        name="no_look_whether_reports_are_closed",
        breaks="No private function runs where a way to report past the closed session is open.",
        file=f"{_HOST}/_trainable.py",
        old="        check_closed(own.closed)\n",
        new="        pass\n",
        tests=(
            f"{_TESTS}/test_closing.py"
            "::test_with_a_ray_that_reports_past_the_session_no_private_function_runs",
        ),
    ),
    Mutant(
        name="agents_do_not_look_whether_reports_are_closed",
        breaks="No agent's objective runs where a way to report past the closed session is open.",
        file=f"{_HOST}/hosts/agents.py",
        old="        check_closed(ClosedSessionError)\n",
        new="",
        tests=(
            f"{_TESTS}/test_closing.py"
            "::test_with_a_ray_that_reports_past_the_session_no_agents_objective_runs",
        ),
    ),
    Mutant(
        name="sealed_for_any_trial",
        breaks="What was sealed for one trial is told of no other.",
        file=f"{_HOST}/_channel.py",
        old='    return f"{name} {operation} {owner}"',
        new='    return f"{name} {operation}"',
        tests=(f"{_TESTS}/test_hosts.py::test_what_was_sealed_for_one_trial_is_told_of_no_other",),
    ),
    Mutant(
        name="losses_in_the_result",
        breaks="A trial's result holds its release, never the vector behind it.",
        file=f"{_HOST}/_trainable.py",
        old="        value, failure = _released(own, private)\n",
        new="        value, failure = _released(own, private)\n"
        '        running.public["records"] = private\n',
        tests=(
            f"{_TESTS}/test_main_job.py::test_a_run_publishes_releases_only_and_ends_by_itself",
        ),
    ),
    Mutant(
        name="users_are_not_charged",
        breaks="An evaluation is charged to the user whose reward it is.",
        file=f"{_HOST}/_evaluations.py",
        old="functools.partial(_release, channel, admitted, trial, user)",
        new="functools.partial(_release, channel, admitted, trial, None)",
        tests=(
            f"{_TESTS}/test_ldp_main_job.py"
            "::test_random_search_with_declared_reports_and_a_budget_that_holds_across_workers",
        ),
    ),
    Mutant(
        name="noise_of_a_test_is_secure",
        breaks="A run with injected noise says that it is not private.",
        file=f"{_HOST}/hosts/rewards.py",
        old="                ledger.run.mark_unprotected(TEST_NOISE)\n",
        new="                ledger.run.note(TEST_NOISE)\n",
        tests=(
            f"{_TESTS}/test_ldp_faults.py"
            "::test_trials_that_die_replay_what_was_stored_and_pay_once",
        ),
    ),
    Mutant(
        name="vault_set_back",
        breaks="A vault that shows less than the search has seen releases nothing more.",
        file=f"{_HOST}/_base.py",
        old="            self._vault_id,\n            self._head,\n",
        new="            self._vault_id,\n",
        tests=(
            f"{_TESTS}/test_hosts.py"
            "::test_a_vault_that_was_put_back_between_two_processes_is_noticed",
        ),
    ),
    Mutant(
        name="rows_in_an_error",
        breaks="What the function that reads the rows raises is withheld.",
        file=f"{_HOST}/hosts/curator.py",
        old="The function that makes the curator raised {public_name(error)}.",
        new="The function that makes the curator raised {error!r}.",
        tests=(
            f"{_TESTS}/test_po_gp_ucb.py::test_what_makes_no_curator_is_refused_and_not_quoted",
        ),
    ),
    Mutant(
        name="agents_values_in_results",
        breaks="A trial's result holds tags; what its agent has found stays with its host.",
        file=f"{_HOST}/hosts/agents.py",
        old="return (DONE, member.link.released) if failure is None",
        new="return (DONE, member.best()[1]) if failure is None",
        tests=(
            f"{_TESTS}/test_federated.py"
            "::test_every_agent_does_its_trials_and_each_round_is_released_once",
        ),
    ),
    Mutant(
        name="objectives_print_into_rays_logs",
        breaks="What an agent's objective prints or logs is in no log file that Ray keeps.",
        file=f"{_HOST}/hosts/agents.py",
        old="            redirect(settings.log_to)\n",
        new="            settings.log_to and redirect(settings.log_to)\n",
        tests=("tests/contracts/test_leaks_ray.py::test_no_secret_reaches_a_sink",),
    ),
    Mutant(
        name="plain_rewards_in_a_report_of_a_search",
        breaks="A report shows releases and no value that was not privatised.",
        file=f"{_HOST}/_rewards.py",
        old="[(x, value) for x, value in told if value in published]",
        new="told",
        tests=(
            "tests/contracts/test_runs.py"
            "::test_values_that_are_no_releases_cost_everything_and_are_on_no_page",
        ),
    ),
    Mutant(
        name="rows_on_the_way_are_not_compared",
        breaks="Every row under somebody else's searcher is compared, not a trial's last alone.",
        file=f"{_HOST}/_means.py",
        old="        self._run._look(trial.trial_id, flat(result))\n",
        new="        del result\n",
        tests=(
            f"{_TESTS}/test_private_trainable.py"
            "::test_what_tune_pickles_and_restores_is_the_run_that_this_process_knows",
        ),
    ),
    Mutant(
        name="configs_are_not_compared",
        breaks="Every searcher compares the config that a row shows with what it has suggested.",
        file=f"{_HOST}/_search.py",
        old="        return [given_to(merged(self._param_space, self._suggestion(trial_id)))]\n",
        new="        return []\n",
        tests=(
            f"{_TESTS}/test_shown.py::test_what_code_around_a_private_function_shows_is_noticed",
        ),
    ),
    Mutant(
        name="what_is_saved_falls_behind",
        breaks="What a search saves of its guarantee is not less than a ledger that goes on.",
        file=f"{_HOST}/_run.py",
        old='        return {**self._last, "guarantee": self._last["guarantee"].at_most()}\n',
        new="        return dict(self._last)\n",
        tests=(
            f"{_TESTS}/test_behind.py"
            "::test_what_a_checkpoint_says_is_not_less_than_a_ledger_that_went_on",
        ),
    ),
)
