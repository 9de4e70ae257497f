"""Slips in the searchers: what Ray's workers, actors and files would show."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HOST = "raytune_searchers"
_TESTS = "tests/raytune_searchers"

MUTANTS = (
    Mutant(
        name="report_is_open",
        breaks="tune.report is closed while a private trainable runs in its worker.",
        file=f"{_HOST}/_trainable.py",
        old="    session.report, _running = closed, running\n",
        new="    session.report, _running = session.report, running\n",
        tests=(f"{_TESTS}/test_guards.py::test_each_way_to_report_is_closed",),
    ),
    Mutant(
        name="losses_in_the_result",
        breaks="A trial's result holds its release, never the vector behind it.",
        file=f"{_HOST}/_trainable.py",
        old="        value, failure = _released(turn, private)\n",
        new="        value, failure = _released(turn, private)\n"
        '        running.public["records"] = private\n',
        tests=(
            f"{_TESTS}/test_main_job.py"
            "::test_a_run_finds_the_minimum_publishes_releases_only_and_ends_by_itself",
        ),
    ),
    Mutant(
        name="trainable_changes_the_config",
        breaks="What a private trainable puts into its config is not written by Tune.",
        file=f"{_HOST}/_trainable.py",
        old="attempt(lambda: trainable(copied(config)), _translated)",
        new="attempt(lambda: trainable(config), _translated)",
        tests=(f"{_TESTS}/test_conformance.py::test_dp_gibo_conforms",),
    ),
    Mutant(
        name="users_are_not_charged",
        breaks="A play is charged to the user whose reward it is.",
        file=f"{_HOST}/_local.py",
        old="functools.partial(_release, channel, admitted, trial, user)",
        new="functools.partial(_release, channel, admitted, trial, None)",
        tests=(
            f"{_TESTS}/test_ldp_faults.py"
            "::test_a_budget_holds_across_workers_and_the_user_is_not_even_asked",
        ),
    ),
    Mutant(
        name="own_draw_is_shown",
        breaks="A trial that runs again shows what was stored of it, and draws nothing.",
        file=f"{_HOST}/_ledger.py",
        old="        return Admission(self._settings, value, public, self._noise)\n",
        new="        return Admission(self._settings, None, public, self._noise)\n",
        tests=(
            f"{_TESTS}/test_ldp_faults.py"
            "::test_trials_that_die_replay_what_was_stored_and_pay_once",
        ),
    ),
    Mutant(
        name="noise_of_a_test_is_secure",
        breaks="A run with injected noise says that it is not private.",
        file=f"{_HOST}/_ledger.py",
        old="                ledger.mark_unprotected(TEST_NOISE)\n",
        new="                ledger.note(TEST_NOISE)\n",
        tests=(
            f"{_TESTS}/test_ldp_faults.py"
            "::test_trials_that_die_replay_what_was_stored_and_pay_once",
        ),
    ),
    Mutant(
        name="anything_beside_the_metric",
        breaks="Results that hold what nobody vouched for end the claim.",
        file=f"{_HOST}/_audit.py",
        old="        if VOUCH.format(name) not in verdict.vouched:\n",
        new="        if verdict.vouched and VOUCH.format(name) not in verdict.vouched:\n",
        tests=(
            f"{_TESTS}/test_review.py::test_whatever_nobody_accounts_for_unprotects",
            f"{_TESTS}/test_guards.py::test_code_around_that_adds_something_unprotects_the_run",
        ),
    ),
    Mutant(
        name="search_says_nothing",
        breaks="A search whose trainable is not wrapped warns.",
        file=f"{_HOST}/_search.py",
        old="            warnings.warn(text, PrivacyWarning, stacklevel=2)\n",
        new="            self._last = None\n",
        tests=(
            f"{_TESTS}/test_main_job.py"
            "::test_a_plain_trainable_still_searches_and_nothing_is_claimed",
        ),
    ),
    Mutant(
        name="restart_without_a_ledger",
        breaks="A ledger in an actor's memory is never begun a second time.",
        file=f"{_HOST}/_actor.py",
        old="max_restarts=-1 if durable else 0,",
        new="max_restarts=-1,",
        tests=(
            f"{_TESTS}/test_faults.py"
            "::test_a_vault_in_memory_that_dies_ends_the_run_with_one_error",
        ),
    ),
    Mutant(
        name="vault_set_back",
        breaks="A vault that shows less than the search has seen releases nothing more.",
        file=f"{_HOST}/_base.py",
        old="            self._vault_id,\n            self._released,\n",
        new="            self._vault_id,\n",
        tests=(
            f"{_TESTS}/test_review.py"
            "::test_a_vault_that_was_set_back_between_two_processes_is_noticed",
        ),
    ),
    Mutant(
        name="set_back_under_the_host",
        breaks="A vault that is set back while its host lives is noticed before the next draw.",
        file="privbo_plugins/session.py",
        old="if self._seq and (not rows or rows[0][0] != self._seq):",
        new="if self._seq and rows and rows[0][0] != self._seq:",
        tests=(
            f"{_TESTS}/test_review.py"
            "::test_a_vault_that_was_set_back_under_a_living_host_is_noticed",
        ),
    ),
    Mutant(
        name="password_in_the_pickle",
        breaks="A vault's password is in nothing that Tune writes.",
        file=f"{_HOST}/_arguments.py",
        old='    if vault.startswith("env:"):\n        return vault\n    secrets',
        new='    if vault.startswith("env:"):\n'
        "        return url.render_as_string(hide_password=False)\n    secrets",
        tests=(f"{_TESTS}/test_guards.py::test_a_password_in_a_variable_is_in_no_pickle",),
    ),
    Mutant(
        name="rows_in_an_error",
        breaks="What the function that reads the rows raises is withheld.",
        file=f"{_HOST}/_answers.py",
        old="The function that makes the curator raised {public_name(error)}.",
        new="The function that makes the curator raised {error!r}.",
        tests=(
            f"{_TESTS}/test_po_gp_ucb.py",
            "-k",
            "what_makes_no_curator_is_refused_and_not_quoted",
        ),
    ),
    Mutant(
        name="agents_values_in_results",
        breaks="A trial's result holds tags; what its agent has found stays with its host.",
        file=f"{_HOST}/_agents.py",
        old="return (DONE, member.link.released) if failure is None",
        new="return (DONE, member.best()[1]) if failure is None",
        tests=(
            f"{_TESTS}/test_federated.py"
            "::test_every_agent_does_its_trials_and_each_round_is_released_once",
        ),
    ),
    Mutant(
        name="agents_session_is_open",
        breaks="An agent's objective cannot report through Tune's session.",
        file=f"{_HOST}/_agents.py",
        old="    ray_session._session = _ClosedSession()\n",
        new="    ray_session._session = None\n",
        tests=(
            f"{_TESTS}/test_federated.py::test_agents_that_fail_tell_nothing_and_hold_up_nobody",
        ),
    ),
    Mutant(
        name="vector_counts_twice",
        breaks="A vector that is sent again for the same trial is in no second round.",
        file=f"{_HOST}/_federation.py",
        old="if known is not None and known[0] >= number:",
        new="if known is not None and known[0] > number:",
        tests=(f"{_TESTS}/test_federated.py::test_a_vector_counts_once_for_a_trial",),
    ),
    Mutant(
        name="tags_hide_a_config",
        breaks="Only the search's own tags are left out of what is compared with the ledger.",
        file=f"{_HOST}/duets.py",
        old="if name not in _TAGGED}",
        new='if not name.startswith("config/")}',
        tests=(f"{_TESTS}/test_duets.py::test_tags_do_not_hide_anything_else",),
    ),
)
