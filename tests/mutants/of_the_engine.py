"""Slips in the engine: mechanisms, accounting, the vault, and who holds secrets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ENGINE = "privbo_plugins"
_TESTS = "tests/engine"

_RECORDS = (
    Mutant(
        name="one_record_decides_the_type_of_all",
        breaks="An odd record changes its own entry only, and never whether a trial fails.",
        file=f"{_ENGINE}/returned.py",
        old="[_number(entry) for entry in _entries(returned, len(returned))]",
        new="_entries(returned, len(returned))",
        tests=(
            f"{_TESTS}/test_returned.py::test_one_record_of_any_kind_changes_its_own_entry_only",
        ),
    ),
    Mutant(
        name="one_row_decides_the_width_of_all",
        breaks="How wide the rows of a list are is declared, and never taken from a row.",
        file=f"{_ENGINE}/returned.py",
        old="            for place, row in enumerate(_entries(rows, len(rows))):\n",
        new=(
            "            width = len(rows[-1])\n"
            "            found = np.full((len(rows), width), math.nan)\n"
            "            for place, row in enumerate(_entries(rows, len(rows))):\n"
        ),
        tests=(
            f"{_TESTS}/test_losses.py"
            "::test_a_list_has_no_type_and_no_width_that_a_record_could_decide",
        ),
    ),
    Mutant(
        name="words_of_a_look_alike",
        breaks="Only the engine's own classes are told in their own words, and no look-alike.",
        file=f"{_ENGINE}/redaction.py",
        old="if type(error) is kind), None)",
        new="if isinstance(error, kind)), None)",
        tests=(
            f"{_TESTS}/test_redaction.py"
            "::test_the_words_of_what_only_looks_like_an_own_error_are_not_told",
        ),
    ),
    Mutant(
        name="frames_that_know_a_user",
        breaks="What a ledger raises holds no frame with a user's name or reward.",
        file=f"{_ENGINE}/redaction.py",
        old="        del args, kwargs\n",
        new="",
        tests=(
            f"{_TESTS}/test_redaction.py"
            "::test_frames_of_a_refused_user_hold_neither_name_nor_reward",
        ),
    ),
    Mutant(
        name="root_of_t_forgotten",
        breaks="All T gradients together cost the declared mu, not each of them.",
        file=f"{_ENGINE}/algorithms/dp_gibo/plan.py",
        old="math.sqrt((1 - value_share - norm_share) / T) if T else 0.0",
        new="math.sqrt(1 - value_share - norm_share) if T else 0.0",
        tests=(f"{_TESTS}/test_session.py::test_gradients_carry_the_published_formula_of_noise",),
    ),
    Mutant(
        name="starts_beyond_the_plan",
        breaks="Many combinations of choices take no more starts than their share of the trials.",
        file=f"{_ENGINE}/algorithms/dp_gibo/choices.py",
        old="min(_PER_ARM * n_arms(space), int(_MOST_SHARE * trials))",
        new="_PER_ARM * n_arms(space)",
        tests=(
            f"{_TESTS}/test_choices.py"
            "::test_many_combinations_take_no_more_than_a_third_of_the_trials",
        ),
    ),
    Mutant(
        name="more_than_the_budget_for_choices",
        breaks="What selects choices is a share of the budget, and leaves the rest to gradients.",
        file=f"{_ENGINE}/algorithms/dp_gibo/plan.py",
        old="value_share = (choices.HALF if S else config.value_share) if T > 0 else 1.0",
        new="value_share = (choices.HALF if S else config.value_share) if T > 0 else 1.5",
        tests=(f"{_TESTS}/test_choices.py::test_selection_costs_the_budget_and_no_more_trials",),
    ),
    Mutant(
        name="a_field_twice",
        breaks="A certificate that people read otherwise than it is checked does not verify.",
        file=f"{_ENGINE}/sessions/certificates.py",
        old="    if len(found) < len(pairs):\n",
        new="    if not pairs:\n",
        tests=(f"{_TESTS}/test_certificate.py::test_a_field_that_is_there_twice_is_refused",),
    ),
    Mutant(
        name="searched_points_not_paid_for",
        breaks="A search by values shares its budget among all its points, not its starts alone.",
        file=f"{_ENGINE}/algorithms/dp_gibo/plan.py",
        old="M = K + S + T * b + 1 + config.extra_values if",
        new="M = K + T * b + 1 + config.extra_values if",
        tests=(
            f"{_TESTS}/test_value_search.py"
            "::test_a_search_costs_the_budget_and_the_trials_of_descent",
        ),
    ),
    Mutant(
        name="search_blind_to_other_workers",
        breaks="Workers at once are sent to different points, and none to where trials failed.",
        file=f"{_ENGINE}/sessions/records.py",
        old='return algorithm.propose_beside(slot, points["out"], points["failed"])',
        new="return algorithm.propose(slot)",
        tests=(
            f"{_TESTS}/test_value_search.py"
            "::test_workers_at_once_are_sent_to_different_points_and_a_second_process_to_the_same",
        ),
    ),
    Mutant(
        name="end_on_a_plateau_recommended",
        breaks="Where all values say that descent ended on a plateau, another point is better.",
        file=f"{_ENGINE}/algorithms/dp_gibo/algorithm.py",
        old="if state.step == plan.n_steps and self._judges:",
        new="if False:",
        tests=(
            f"{_TESTS}/test_value_search.py"
            "::test_a_run_that_ends_on_a_plateau_recommends_another_point_and_draws_the_way",
        ),
    ),
    Mutant(
        name="sensitivity_of_one_record_removed",
        breaks="Replacing a record moves a mean of clipped gradients by 2 B / n, not B / n.",
        file=f"{_ENGINE}/algorithms/dp_gibo/algorithm.py",
        old="sensitivity=2.0 * B / plan.n_records",
        new="sensitivity=B / plan.n_records",
        tests=(
            "tests/contracts/test_algorithm.py"
            "::test_one_record_never_moves_a_statistic_more_than_its_sensitivity",
            f"{_TESTS}/test_session.py::test_gradients_carry_the_published_formula_of_noise",
        ),
    ),
    Mutant(
        name="planned_norm_known_to_the_noise_only",
        breaks="Gradients are clipped to the norm that their sensitivity is made of.",
        file=f"{_ENGINE}/algorithms/dp_gibo/algorithm.py",
        old="mean_of_clipped_rows(self._gradients(blocks, W), B)",
        new="mean_of_clipped_rows(self._gradients(blocks, W), 1.0)",
        tests=(
            "tests/contracts/test_algorithm.py"
            "::test_one_record_never_moves_a_statistic_more_than_its_sensitivity",
            f"{_TESTS}/test_audit.py"
            "::test_the_gradient_release_with_a_planned_norm_is_as_private_as_it_claims",
        ),
    ),
    Mutant(
        name="clip_by_coordinate",
        breaks="A record's whole gradient is bounded, not each of its coordinates.",
        file=f"{_ENGINE}/privacy/mechanisms.py",
        old="return np.where(np.isfinite(largest)[:, None], clipped, 0.0)",
        new="return np.asarray(np.clip(G, -B, B))",
        tests=(
            f"{_TESTS}/test_mechanisms.py"
            "::test_clipped_rows_are_short_enough_and_keep_their_direction",
            f"{_TESTS}/test_mechanisms.py"
            "::test_mean_of_rows_never_moves_more_than_its_sensitivity",
        ),
    ),
    Mutant(
        name="nan_is_not_replaced",
        breaks="A loss that is no number counts as the worst one.",
        file=f"{_ENGINE}/privacy/mechanisms.py",
        old="above = np.where(np.isfinite(y), y, worst) - low",
        new="above = y - low",
        tests=(
            f"{_TESTS}/test_mechanisms.py::test_clipped_values_are_distances_from_the_lower_bound",
            f"{_TESTS}/test_session.py"
            "::test_values_that_are_not_finite_count_as_the_worst_of_the_range",
        ),
    ),
    Mutant(
        name="values_are_not_clipped",
        breaks="A released mean loss holds each record's loss clipped to the declared range.",
        file=f"{_ENGINE}/privacy/mechanisms.py",
        old="return np.asarray(np.clip(above, 0.0, high - low))",
        new="return np.asarray(above)",
        tests=(
            f"{_TESTS}/test_mechanisms.py::test_clipped_values_are_distances_from_the_lower_bound",
            f"{_TESTS}/test_session.py"
            "::test_released_values_are_the_clipped_mean_plus_the_planned_noise",
        ),
    ),
    Mutant(
        name="noise_of_a_seed",
        breaks="Noise comes from the operating system, whatever a program has seeded.",
        file=f"{_ENGINE}/privacy/noise.py",
        old="return np.array(drawn, dtype=float)",
        new="return np.asarray(value + scale * np.random.standard_normal(value.shape))",
        tests=(
            f"{_TESTS}/test_local_mechanisms.py"
            "::test_secure_noise_of_rewards_never_repeats_whatever_is_seeded",
        ),
    ),
    Mutant(
        name="charge_after_the_draw",
        breaks="Nothing is drawn before its charge is written and found to fit.",
        file=f"{_ENGINE}/store/release.py",
        old="        order.charge(tx)\n"
        "        if self.uses_test_noise:\n"
        "            tx.mark_unprotected(TEST_NOISE)\n"
        "        payload = order.draw(self._noise)\n",
        new="        payload = order.draw(self._noise)\n"
        "        order.charge(tx)\n"
        "        if self.uses_test_noise:\n"
        "            tx.mark_unprotected(TEST_NOISE)\n",
        tests=(
            f"{_TESTS}/test_session.py"
            "::test_a_ledger_that_is_already_full_refuses_before_anything_is_drawn",
        ),
    ),
    Mutant(
        name="nothing_is_replayed",
        breaks="What was released once is never drawn again.",
        file=f"{_ENGINE}/store/release.py",
        old="        if known is not None:\n"
        "            return known\n"
        "        self._run.check(tx)\n",
        new="        self._run.check(tx)\n",
        tests=(f"{_TESTS}/test_release.py::test_the_head_is_a_hash_of_every_line_in_order",),
    ),
    Mutant(
        name="a_head_that_nobody_compares",
        breaks="A vault that was restored from an older backup draws nothing.",
        file=f"{_ENGINE}/store/run.py",
        old="    if head.n and tx.link_at(head.n) != head.digest:\n",
        new="    if head.n and tx.link_at(head.n) is None:\n",
        tests=(
            f"{_TESTS}/test_release.py"
            "::test_a_vault_that_was_put_back_and_has_grown_again_is_told_apart",
        ),
    ),
    Mutant(
        name="copies_of_a_vault",
        breaks="Of two copies of a vault one draws at most.",
        file=f"{_ENGINE}/store/run.py",
        old="        if place not in witness.places():\n            witness.show_place(place)\n",
        new="",
        tests=(
            f"{_TESTS}/test_release.py"
            "::test_a_copy_that_is_opened_while_a_head_is_shown_ends_its_publication",
        ),
    ),
    Mutant(
        name="published_before_it_is_shown",
        breaks="Whoever shows the releases hears of one before it is published.",
        file=f"{_ENGINE}/store/run.py",
        old="        if head != self._memory.head():\n            self._show()\n",
        new="        self._memory.show(head)\n",
        tests=(
            f"{_TESTS}/test_release.py::test_a_release_is_published_only_once_its_head_is_shown",
        ),
    ),
    Mutant(
        name="a_witness_begun_anew",
        breaks="A run that has cost something is not joined without the file of its witness.",
        file=f"{_ENGINE}/store/witness.py",
        old=" and not run.charged:",
        new=":",
        tests=(
            f"{_TESTS}/test_witness.py"
            "::test_a_run_that_has_cost_something_is_not_joined_without_its_file",
        ),
    ),
    Mutant(
        name="a_damaged_witness_knows_nothing",
        breaks="A run whose witness is damaged draws nothing.",
        file=f"{_ENGINE}/store/witness.py",
        old="            known = _understood(read_json(self._path, _FORMAT))\n"
        "        except (KeyError, TypeError, ValueError):\n",
        new="            known = _understood(read_json(self._path, _FORMAT))\n"
        "        except (KeyError, TypeError, ValueError):\n"
        "            return _Known(self._run)\n",
        tests=(
            f"{_TESTS}/test_witness.py::test_a_damaged_file_is_refused_and_left_as_it_is[cut]",
        ),
    ),
    Mutant(
        name="a_witness_of_any_run",
        breaks="A vault that was lost and begun anew is not taken for the one that was shown.",
        file=f"{_ENGINE}/store/witness.py",
        old="        if known.run != self._run:\n",
        new="        if not known.run:\n",
        tests=(f"{_TESTS}/test_witness.py::test_a_file_is_one_run_s",),
    ),
    Mutant(
        name="witnesses_that_write_over_each_other",
        breaks="What one worker has shown in a file is not lost by what another writes.",
        file=f"{_ENGINE}/store/witness.py",
        old="                fcntl.flock(held, fcntl.LOCK_EX)\n",
        new="                pass\n",
        tests=(
            f"{_TESTS}/test_witness.py::test_what_another_shows_while_a_file_is_written_is_not_lost",
        ),
    ),
    Mutant(
        name="tokens_that_never_end",
        breaks="Of two attempts that draw on one charge one stores its draw.",
        file=f"{_ENGINE}/store/vault.py",
        old='        self._run("take_token", t=trial)\n'
        '        self._run("hand_token", trial=trial, token=token)\n',
        new='        row = self._one("token", trial=trial)\n'
        "        if row is not None:\n"
        "            return str(row[0])\n"
        '        self._run("hand_token", trial=trial, token=token)\n',
        tests=(
            f"{_TESTS}/test_release.py::test_two_attempts_that_draw_on_one_charge_store_one_draw",
        ),
    ),
    Mutant(
        name="losses_outlive_their_release",
        breaks="Raw losses are deleted once their step is released.",
        file=f"{_ENGINE}/sessions/records.py",
        old="                tx.drop_losses([t for t in queries[-1].trials if t not in keep])\n",
        new="                tx.drop_losses([t for t in keep if t not in queries[-1].trials])\n",
        tests=(f"{_TESTS}/test_session.py::test_only_remembered_points_keep_their_losses",),
    ),
    Mutant(
        name="limits_are_the_algorithms_to_drop",
        breaks="The limits of per-record losses are told whatever algorithm released.",
        file=f"{_ENGINE}/sessions/records.py",
        old="not_covered=NOT_COVERED_TUNER + words.not_covered",
        new="not_covered=words.not_covered",
        tests=(
            "tests/optuna_samplers/test_from_outside.py"
            "::test_the_guarantee_is_in_the_algorithms_own_words_and_keeps_the_limits_of_all",
        ),
    ),
    Mutant(
        name="settings_of_another_algorithm_pass",
        breaks="A run is told as the algorithm whose settings it has.",
        file=f"{_ENGINE}/algorithms/registry.py",
        old="if not isinstance(config, found.load_config()):",
        new="if not isinstance(config, object):",
        tests=(
            f"{_TESTS}/test_registry.py::test_settings_that_say_nothing_of_the_kind_are_refused",
        ),
    ),
)

_VAULT = (
    Mutant(
        name="vault_readable_by_others",
        breaks="A vault's file is for its owner alone.",
        file=f"{_ENGINE}/store/vault.py",
        old="os.O_RDWR, 0o600",
        new="os.O_RDWR, 0o644",
        tests=(f"{_TESTS}/test_vault.py::test_a_new_file_is_readable_by_its_owner_alone",),
    ),
    Mutant(
        name="deleted_rows_stay_in_the_file",
        breaks="What is deleted from a vault is overwritten in its file.",
        file=f"{_ENGINE}/store/tables.py",
        old="PRAGMA secure_delete=ON",
        new="PRAGMA secure_delete=OFF",
        tests=(f"{_TESTS}/test_vault.py::test_nothing_of_deleted_losses_stays_in_the_file",),
    ),
    Mutant(
        name="a_commit_that_a_power_loss_takes_back",
        breaks="A release is published when its commit can no longer be undone.",
        file=f"{_ENGINE}/store/tables.py",
        old="PRAGMA synchronous=EXTRA",
        new="PRAGMA synchronous=FULL",
        tests=(
            f"{_TESTS}/test_vault.py"
            "::test_every_connection_syncs_the_directory_and_overwrites_what_it_deletes",
        ),
    ),
    Mutant(
        name="deleted_rows_stay_in_the_log",
        breaks="A vault's file does not stay in write-ahead mode.",
        file=f"{_ENGINE}/store/tables.py",
        old='fetchone()[0] != "wal"',
        new='fetchone()[0] != "persist"',
        tests=(
            f"{_TESTS}/test_vault.py::test_nothing_of_deleted_losses_stays_in_a_write_ahead_log",
        ),
    ),
    Mutant(
        name="a_lost_file_comes_back_empty",
        breaks="A vault's file that went away is not made anew by SQLite.",
        file=f"{_ENGINE}/store/tables.py",
        old="?mode=rw",
        new="?mode=rwc",
        tests=(
            f"{_TESTS}/test_vault.py"
            "::test_a_file_that_goes_away_in_mid_run_does_not_come_back_without_its_ledger",
        ),
    ),
    Mutant(
        name="a_vault_of_somebody_else",
        breaks="A vault's file belongs to who uses it.",
        file=f"{_ENGINE}/store/vault.py",
        old="if owner not in (user, 0) and user != 0:",
        new="if owner == -1:",
        tests=(f"{_TESTS}/test_vault.py::test_a_file_of_another_user_is_refused",),
    ),
)

_REWARDS = (
    Mutant(
        name="clip_after_the_noise",
        breaks="A reward is clipped before its noise is drawn.",
        file=f"{_ENGINE}/privacy/local.py",
        old="return self.middle + self.half * self._release(self.clip(y, worst), noise)",
        new="y = y if math.isfinite(y) else worst\n"
        "        noisy = self.middle + self.half * self._release((y - self.middle) / self.half, "
        "noise)\n"
        "        return min(max(noisy, self.low), self.high)",
        tests=(
            f"{_TESTS}/test_local_audit.py"
            "::test_no_pair_of_rewards_is_told_apart_better_than_claimed",
            f"{_TESTS}/test_local_audit.py::test_secure_releases_are_as_private_as_they_claim",
        ),
    ),
    Mutant(
        name="last_worker_wins",
        breaks="Of two workers that draw for one trial the first one's release stays.",
        file=f"{_ENGINE}/store/release.py",
        old="    if known is not None:\n        return known\n    run.check(tx)\n    if not",
        new="    run.check(tx)\n    if known is None and not",
        tests=(
            f"{_TESTS}/test_rewards.py"
            "::test_an_evaluation_drawn_elsewhere_is_charged_once_and_stored_once[memory]",
            f"{_TESTS}/test_rewards.py"
            "::test_an_evaluation_drawn_elsewhere_is_charged_once_and_stored_once[file]",
        ),
    ),
    Mutant(
        name="budget_off_by_one",
        breaks="A user is refused before an evaluation that the user's budget does not hold.",
        file=f"{_ENGINE}/sessions/rewards.py",
        old="evaluations = Counter([self.mechanism.evaluation])",
        new="evaluations = Counter[Cost]()",
        tests=(f"{_TESTS}/test_rewards.py::test_a_user_is_refused_before_anything_is_drawn",),
    ),
    Mutant(
        name="deltas_of_plays_forgotten",
        breaks="What a user's evaluations cost is claimed at a delta that covers all of them.",
        file=f"{_ENGINE}/privacy/accountant.py",
        old="added = added if declared <= delta else math.inf",
        new="added = added + 0.0",
        tests=(
            f"{_TESTS}/test_composed_evaluations.py"
            "::test_a_user_s_gaussian_evaluations_in_several_runs_are_claimed_at_a_true_pair",
        ),
    ),
    Mutant(
        name="a_budget_at_the_delta_of_others",
        breaks="What a user pays elsewhere never enlarges what a budget allows.",
        file=f"{_ENGINE}/sessions/rewards.py",
        old="total = evaluations_epsilon(evaluations, self.user_delta)",
        new="total = evaluations_epsilon(evaluations, evaluations_delta(evaluations))",
        tests=(
            f"{_TESTS}/test_figures.py"
            "::test_nothing_that_is_paid_elsewhere_enlarges_what_a_budget_allows",
        ),
    ),
    Mutant(
        name="a_response_told_apart_too_rarely",
        breaks="Randomised responses compose to no less than the binomial says.",
        file=f"{_ENGINE}/privacy/accountant.py",
        old="epsilon * (2 * honest - k)",
        new="epsilon * (2 * honest - k - 1)",
        tests=(
            f"{_TESTS}/test_figures.py::test_many_pure_evaluations_cost_what_the_binomial_says",
        ),
    ),
    Mutant(
        name="an_asked_epsilon_exceeded",
        breaks="Whoever was allowed an epsilon reads no larger one.",
        file=f"{_ENGINE}/privacy/accountant.py",
        old="    while gdp_epsilon(found, delta) > epsilon:",
        new="    while False:",
        tests=(
            f"{_TESTS}/test_figures.py::test_whoever_was_allowed_an_epsilon_reads_no_larger_one",
        ),
    ),
    Mutant(
        name="a_name_of_many_spellings",
        breaks="One user pays from one account, however the name is spelt.",
        file=f"{_ENGINE}/users.py",
        old='return unicodedata.normalize("NFKC", _spelling(user)).strip()',
        new="return repr(user_name(user))",
        tests=(f"{_TESTS}/test_rewards.py::test_a_name_is_one_user_however_it_is_spelt",),
    ),
    Mutant(
        name="claim_rounded_down",
        breaks="No figure of a claim is printed smaller than it is.",
        file=f"{_ENGINE}/privacy/figures.py",
        old="_rounded(value, Context(prec=digits, rounding=ROUND_CEILING))",
        new="_rounded(value, Context(prec=digits, rounding=ROUND_FLOOR))",
        tests=(
            "tests/contracts/test_guarantee.py::test_no_figure_of_an_epsilon_is_printed_smaller",
        ),
    ),
)

_FEDERATION = (
    Mutant(
        name="work_for_the_chosen_only",
        breaks="Nobody can time whether a round's coin has chosen an agent.",
        file=f"{_ENGINE}/algorithms/dp_fts_de/server.py",
        old="        clipped = clip_rows(",
        new="        if not self._chosen[n]:\n            return\n        clipped = clip_rows(",
        tests=(
            f"{_TESTS}/test_federated_mechanism.py"
            "::test_the_same_work_is_done_for_whoever_is_chosen_or_not",
        ),
    ),
    Mutant(
        name="leaks_are_free",
        breaks="What may leak of some evaluations is taken off the delta of all others.",
        file=f"{_ENGINE}/privacy/accountant.py",
        old="    return gdp_epsilon(mu, delta - leaked) + added",
        new="    return gdp_epsilon(mu, delta) + added",
        tests=(
            f"{_TESTS}/test_composed_evaluations.py"
            "::test_what_leaks_of_some_evaluations_is_no_delta_of_the_gaussian_ones",
        ),
    ),
    Mutant(
        name="rounds_do_not_compose",
        breaks="Epsilon is that of all rounds together.",
        file=f"{_ENGINE}/privacy/subsampling.py",
        old="return {PoissonGaussianEvent(z, q): T}",
        new="return {PoissonGaussianEvent(z, q): 1}",
        tests=(
            f"{_TESTS}/test_subsampling.py::test_the_papers_epsilons",
            f"{_TESTS}/test_subsampling.py"
            "::test_privacy_loss_distributions_of_the_papers_settings",
        ),
    ),
    Mutant(
        name="no_coins",
        breaks="An agent is in a round only if its coin says so: the accounting counts on it.",
        file=f"{_ENGINE}/store/release.py",
        old="return [choose(self._noise, q) for _ in range(n)]",
        new="return [choose(self._noise, q) or True for _ in range(n)]",
        tests=(
            f"{_TESTS}/test_federated_mechanism.py"
            "::test_a_server_releases_what_its_coins_and_its_noise_say",
        ),
    ),
    Mutant(
        name="empty_round_is_silent",
        breaks="A round that nobody is in releases its noise like any other.",
        file=f"{_ENGINE}/sessions/rounds.py",
        old="        if self.config.noise_multiplier == 0:\n            return exact\n",
        new="        if self.config.noise_multiplier == 0 or not exact.any():\n"
        "            return exact\n",
        tests=(
            f"{_TESTS}/test_federated_mechanism.py"
            "::test_an_empty_subset_releases_noise_of_the_full_scale",
            f"{_TESTS}/test_federation_server.py::test_a_held_round_is_released_whoever_takes_part",
        ),
    ),
    Mutant(
        name="an_agent_counts_twice",
        breaks="What an agent sends again to a round does not count.",
        file=f"{_ENGINE}/sessions/rounds.py",
        old="            if agent not in current.sent:  "
        "# the first message counts, whatever is sent again\n"
        "                current.total.add(agent, message)\n"
        "                current.sent.add(agent)\n"
        "                self._close_if_complete()\n",
        new="            current.total.add(agent, message)\n"
        "            current.sent.add(agent)\n"
        "            self._close_if_complete()\n",
        tests=(f"{_TESTS}/test_federation_server.py::test_the_first_message_of_an_agent_counts",),
    ),
    Mutant(
        name="a_password_in_an_error",
        breaks="No error repeats the URL of a vault, which may hold a password.",
        file=f"{_ENGINE}/store/tables.py",
        old="    except (sa.exc.ArgumentError, ValueError):",
        new="    except sa.exc.ArgumentError:",
        tests=(
            "tests/fuzz/test_examples.py"
            "::test_a_url_with_a_slip_is_refused_and_its_password_not_repeated",
        ),
    ),
    Mutant(
        name="anybody_is_an_agent",
        breaks="Nobody speaks for an agent without its secret.",
        file=f"{_ENGINE}/federation/listening.py",
        old="known = isinstance(secret, bytes) and hmac.compare_digest(expected, secret)",
        new="known = isinstance(secret, bytes) and len(expected) >= len(secret)",
        tests=(
            f"{_TESTS}/test_federation_remote.py"
            "::test_a_secret_opens_one_agent_of_one_run_of_one_server",
            f"{_TESTS}/test_federation_remote.py::test_whoever_proves_nothing_is_answered_nothing",
        ),
    ),
    Mutant(
        name="any_certificate_is_the_servers",
        breaks="An agent accepts the certificate of its invitation alone.",
        file=f"{_ENGINE}/federation/calls.py",
        old="grpc.ssl_channel_credentials(invitation.trusted, key, chain)",
        new='grpc.ssl_channel_credentials(__import__("ssl").get_server_certificate('
        "invitation.address).encode(), key, chain)",
        tests=(f"{_TESTS}/test_federation_remote.py::test_an_impostor_is_sent_nothing",),
    ),
    Mutant(
        name="any_epoch",
        breaks="A server acts on nothing that was meant for the one before it.",
        file=f"{_ENGINE}/federation/listening.py",
        old='request.get("epoch") != self.epoch',
        new='request.get("epoch") is None',
        tests=(
            f"{_TESTS}/test_federation_remote.py"
            "::test_a_vector_that_may_have_been_used_is_not_sent_again",
            f"{_TESTS}/test_federation_remote.py::test_a_server_that_lost_its_ledger_is_found_out",
        ),
    ),
    Mutant(
        name="a_vector_sent_again_is_another",
        breaks="A vector that is sent again, because a connection was lost, counts once.",
        file=f"{_ENGINE}/federation/listening.py",
        old="if key not in known:",
        new="if key in (key,):",
        tests=(
            f"{_TESTS}/test_federation_remote.py::test_a_vector_that_is_sent_again_counts_once",
        ),
    ),
    Mutant(
        name="bodies_are_waited_for",
        breaks="A request whose body does not come is ended.",
        file=f"{_ENGINE}/federation/limits.py",
        old="if until < now]",
        new="if until < 0]",
        tests=(f"{_TESTS}/test_federation_path.py::test_a_call_is_ended_once_its_body_is_late",),
    ),
    Mutant(
        name="a_coin_saves_work",
        breaks="The work for a vector does not depend on its coin.",
        file=f"{_ENGINE}/algorithms/dp_fts_de/server.py",
        old="        self._total += self._chosen[n] * self.part(n, w)\n",
        new="        if self._chosen[n]:\n            self._total += self.part(n, w)\n",
        tests=(
            f"{_TESTS}/test_federation_path.py"
            "::test_the_server_does_the_same_for_a_vector_whatever_its_coin",
        ),
    ),
    Mutant(
        name="short_vectors_are_short",
        breaks="A message is as long whatever its numbers are.",
        file=f"{_ENGINE}/federation/messages.py",
        old='return text(np.ascontiguousarray(numbers, dtype="<f8").tobytes())',
        new=(
            'return text(np.ascontiguousarray(numbers, dtype="<f8").tobytes())'
            ' + " " * (not np.any(numbers))'
        ),
        tests=(
            f"{_TESTS}/test_federation_path.py"
            "::test_no_message_is_longer_or_shorter_for_a_value_or_a_coin",
        ),
    ),
)

_ROWS = (
    Mutant(
        name="bounds_of_the_data",
        breaks="Rows are scaled by public bounds, never by those of the table.",
        file=f"{_ENGINE}/algorithms/po_gp_ucb/gaussian.py",
        old="low, high = np.array(self.low), np.array(self.high)",
        new="low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)",
        tests=(
            f"{_TESTS}/test_po_gp_ucb_gaussian.py::test_columns_are_scaled_by_public_bounds_alone",
        ),
    ),
    Mutant(
        name="a_table_for_each_curator",
        breaks="A table is drawn once, whoever asks for it again.",
        file=f"{_ENGINE}/sessions/rows.py",
        old='begin_or_join(self._vault, f"{_PREFIX}{self._name}"',
        new='begin_or_join(self._vault, f"{_PREFIX}{self._name}/{id(self)}"',
        tests=(
            f"{_TESTS}/test_po_gp_ucb_curator.py"
            "::test_a_table_is_drawn_once_whoever_asks_and_whatever_its_rows_are_now",
        ),
    ),
    Mutant(
        name="projection_claims_protection",
        breaks="The published projection is never said to protect anybody.",
        file=f"{_ENGINE}/algorithms/po_gp_ucb/table.py",
        old="claimed, mu = self.protected and self.mu is not None,",
        new="claimed, mu = self.protected or self.mu is None,",
        tests=(
            f"{_TESTS}/test_po_gp_ucb_curator.py"
            "::test_a_projection_is_never_protected_and_warns_each_time",
        ),
    ),
    Mutant(
        name="raw_answer",
        breaks="Where outcomes are declared private, an answer is a release.",
        file=f"{_ENGINE}/sessions/rows.py",
        old="            return self._answers.release(str(row), y, payer, self._worst)\n",
        new="            self._answers.release(str(row), y, payer, self._worst)\n"
        "            return y\n",
        tests=(
            f"{_TESTS}/test_po_gp_ucb_curator.py"
            "::test_privatised_answers_are_charged_and_drawn_once_a_row",
        ),
    ),
    Mutant(
        name="entries_of_the_table_as_answers",
        breaks="A column of the table is not answered as it is.",
        file=f"{_ENGINE}/sessions/rows.py",
        old="if self._private_answers is None and name in _names_of(self._columns or ()):",
        new="if self._private_answers is not None and name == self._name:",
        tests=(
            f"{_TESTS}/test_po_gp_ucb_curator.py"
            "::test_a_column_of_the_table_is_never_told_as_it_is",
        ),
    ),
    Mutant(
        name="a_column_a_row",
        breaks="A release answers for one column.",
        file=f"{_ENGINE}/sessions/rows.py",
        old="if tied and tied != (name,):",
        new="if not name:",
        tests=(
            f"{_TESTS}/test_po_gp_ucb_curator.py"
            "::test_the_first_answer_ties_a_run_to_one_outcome_column",
        ),
    ),
    Mutant(
        name="entries_of_another_table_as_answers",
        breaks="What one release of a vault protects is answered as it is by no other.",
        file=f"{_ENGINE}/sessions/rows.py",
        old="if self._private_answers is None and name in other.hidden:",
        new="if self._private_answers is None and name in other.shown:",
        tests=(
            f"{_TESTS}/test_po_gp_ucb_curator.py"
            "::test_a_column_that_another_run_protects_is_never_told_as_it_is",
        ),
    ),
    Mutant(
        name="an_answer_file_remembers_no_vault",
        breaks="A vault that knows less than the file of its answers draws nothing.",
        file=f"{_ENGINE}/sessions/answer_file.py",
        old="            run.shown_by(_AnswerWitness(self, run))",
        new="            _AnswerWitness(self, run)",
        tests=(
            f"{_TESTS}/test_curator_cli.py"
            "::test_a_file_that_lost_its_answers_still_knows_how_far_the_vault_came",
        ),
    ),
    Mutant(
        name="private_files_by_name",
        breaks="Nothing is written by a name that others may exchange.",
        file=f"{_ENGINE}/files.py",
        old='with open(opened, "wb") as file:',
        new='with open(target.with_name(beside), "wb") as file:',
        tests=(
            f"{_TESTS}/test_curator_cli.py"
            "::test_a_name_that_is_exchanged_while_a_file_is_written_gets_nothing",
        ),
    ),
    Mutant(
        name="exact_outcomes_for_everybody",
        breaks="A file of exact outcomes is for its owner alone.",
        file=f"{_ENGINE}/files.py",
        old="(0o600 if private else 0o666)",
        new="(0o666 if private else 0o600)",
        tests=(
            f"{_TESTS}/test_curator_cli.py"
            "::test_exact_outcomes_are_for_their_owner_alone_and_a_table_for_whom_the_umask_allows",
        ),
    ),
)

_AGENTS = (
    Mutant(
        name="one_coin_for_all_agents",
        breaks="Each agent has a coin of its own; everybody could replay draws from a public one.",
        file=f"{_ENGINE}/algorithms/duets/coins.py",
        old="own = self.own[agent]",
        new="own = self.public",
        tests=(
            f"{_TESTS}/test_duets.py::test_private_coins_are_private",
            f"{_TESTS}/test_duets.py::test_keys_agents_and_epochs_have_coins_of_their_own",
        ),
    ),
    Mutant(
        name="a_coin_gives_the_others",
        breaks="Nobody works out another agent's private coin from his own.",
        file=f"{_ENGINE}/algorithms/duets/coins.py",
        old='own = {agent: _derived(int(key), "agent", agent) for agent in range(n_agents)}',
        new="own = dict(cls.shared(key, n_agents).own)",
        tests=(f"{_TESTS}/test_duets.py::test_no_agent_works_out_anothers_coin",),
    ),
)

_TOLD = (
    Mutant(
        name="a_command_that_quotes",
        breaks="Of what fails inside, the command line tells the kind alone.",
        file=f"{_ENGINE}/cli/outcome.py",
        old='f"Failed inside ({public_name(error)}). What it says',
        new='f"Failed inside ({error}). What it says',
        tests=(f"{_TESTS}/test_cli.py::test_what_fails_inside_is_told_by_its_kind_alone",),
    ),
    Mutant(
        name="plain_floats_in_a_history",
        breaks="A report shows releases and no value that was not privatised.",
        file=f"{_ENGINE}/sessions/records.py",
        old='if r.kind in ("value", "final") and not self.plain]',
        new='if r.kind in ("value", "final")]',
        tests=(
            "tests/optuna_samplers/test_vault_alone.py"
            "::test_a_run_of_plain_floats_is_told_as_unprotected",
        ),
    ),
    Mutant(
        name="rewards_of_two_spaces",
        breaks="Who joined before a run's space was known draws nothing for it after.",
        file=f"{_ENGINE}/sessions/rewards.py",
        old="        compare(tx, self._asked)\n",
        new="",
        tests=(
            f"{_TESTS}/test_run_settings.py"
            "::test_who_joined_before_the_space_was_known_draws_nothing_after[memory]",
        ),
    ),
    Mutant(
        name="an_algorithm_of_unknown_evaluations",
        breaks="A vault names an algorithm only if all rewards of the run were asked for by it.",
        file=f"{_ENGINE}/sessions/run_settings.py",
        old="late = new if new and tx.evaluations() else []",
        new="late = list[str]()",
        tests=(
            f"{_TESTS}/test_run_settings.py"
            "::test_a_run_whose_first_evaluations_nobody_knows_says_so"
            "_and_takes_one_space_from_then_on[memory]",
        ),
    ),
    Mutant(
        name="a_vault_that_forgets_names",
        breaks="A vault alone knows that one user was asked several times.",
        file=f"{_ENGINE}/sessions/rewards.py",
        old="person != self._pseudonym(trial, None)",
        new="person == ''",
        tests=(
            "tests/optuna_samplers/test_vault_alone.py"
            "::test_of_rewards_it_is_the_objectives_guarantee",
        ),
    ),
)

_CERTIFIED = (
    Mutant(
        name="certificate_that_was_never_issued",
        breaks="A certificate in which anything was changed is none that the vault has issued.",
        file=f"{_ENGINE}/sessions/certificates.py",
        old="if tx.has_mark(ISSUED, certificate.digest):",
        new="if True:",
        tests=(f"{_TESTS}/test_certificate.py::test_a_changed_field_is_found[issued]",),
    ),
    Mutant(
        name="later_releases_unnoticed",
        breaks="A certificate does not agree once more was released.",
        file=f"{_ENGINE}/sessions/certificates.py",
        old="return sum(run in runs for run in tx.released_since(n))",
        new="return 0",
        tests=(f"{_TESTS}/test_certificate.py::test_later_releases_are_found_and_counted",),
    ),
    Mutant(
        name="studies_on_the_same_records_not_added",
        breaks="Runs on the same records cost the root of their summed squares together.",
        file=f"{_ENGINE}/sessions/certificates.py",
        old="mu=math.sqrt(math.fsum(claim.mu**2 for _, claim in own)),",
        new="mu=max(claim.mu for _, claim in own),",
        tests=(f"{_TESTS}/test_certificate.py::test_runs_on_the_same_records_add_up_as_squares",),
    ),
    Mutant(
        name="one_unprotected_study_among_several",
        breaks="If nothing can be claimed for one of several runs, nothing is for all.",
        file=f"{_ENGINE}/sessions/certificates.py",
        old="protected=not reasons,",
        new="protected=True,",
        tests=(f"{_TESTS}/test_certificate.py::test_runs_on_the_same_records_add_up_as_squares",),
    ),
    Mutant(
        name="guess_after_half_of_mu",
        breaks="The best guess after a mu-GDP release is Phi(mu / 2).",
        file=f"{_ENGINE}/privacy/accountant.py",
        old="math.erf(mu / math.sqrt(8.0))",
        new="math.erf(mu / 4)",
        tests=(
            f"{_TESTS}/test_certificate.py"
            "::test_the_best_guess_after_a_gaussian_release_is_that_of_the_likelihood_ratio",
        ),
    ),
    Mutant(
        name="texts_of_a_page_not_escaped",
        breaks="No text from outside becomes markup of a report.",
        file=f"{_ENGINE}/page.py",
        old="Markup(escape(str(value)))",
        new="Markup(str(value))",
        tests=(f"{_TESTS}/test_report_pages.py::test_hostile_texts_stay_texts[DP-GIBO]",),
    ),
)

_AGGREGATE = (
    Mutant(
        name="no_masks_of_pairs",
        breaks="What an agent sends is masked with every other agent.",
        file=f"{_ENGINE}/federation/masking.py",
        old="    return mask if u < v else np.uint64(0) - mask",
        new="    return np.zeros_like(mask)",
        tests=(
            f"{_TESTS}/test_aggregate_audit.py"
            "::test_masks_of_pairs_protect_an_agent_whose_own_mask_is_known",
        ),
    ),
    Mutant(
        name="no_mask_of_its_own",
        breaks="An agent that counts as lost is not read by who is given its key.",
        file=f"{_ENGINE}/federation/masking.py",
        old="    y: Words = x + stream(keys.b, len(x))",
        new="    y: Words = x.copy()",
        tests=(f"{_TESTS}/test_aggregate_audit.py", "-k", "lost"),
    ),
    Mutant(
        name="masks_that_repeat",
        breaks="Another purpose gives another key: two rounds have nothing in common.",
        file=f"{_ENGINE}/federation/masking.py",
        old="HKDF(hashes.SHA256(), SEED, None, purpose.encode())",
        new="HKDF(hashes.SHA256(), SEED, None, b'')",
        tests=(f"{_ENGINE}/federation/masking.py", "--doctest-modules"),
    ),
    Mutant(
        name="keys_for_two_attempts",
        breaks="Keys are new in every attempt at a round.",
        file=f"{_ENGINE}/federation/phases.py",
        old="            keys, noise = Keys.new(),",
        new="            keys, noise = self.__dict__.setdefault('_keys', Keys.new()),",
        tests=(f"{_TESTS}/test_aggregate.py::test_keys_and_noise_are_new_in_every_attempt",),
    ),
    Mutant(
        name="no_share_of_the_noise",
        breaks="Every agent adds its share of the noise.",
        file=f"{_ENGINE}/federation/phases.py",
        old="x = measure.part(self._agent, w) + noise",
        new="x = measure.part(self._agent, w) + 0 * noise",
        tests=(f"{_TESTS}/test_aggregate.py::test_the_noise_of_a_sum_is_what_the_broadcast_says",),
    ),
    Mutant(
        name="shares_as_if_nobody_colluded",
        breaks="The shares of those that do not collude are noise enough.",
        file=f"{_ENGINE}/algorithms/dp_fts_de/shares.py",
        old="* 2.0**FRACTION_BITS / math.sqrt(T - c)",
        new="* 2.0**FRACTION_BITS / math.sqrt(T)",
        tests=(
            f"{_TESTS}/test_aggregate.py"
            "::test_who_does_not_collude_adds_the_noise_of_a_trusted_server",
        ),
    ),
    Mutant(
        name="finite_against_all",
        breaks="Nothing is claimed against as many as open every mask.",
        file=f"{_ENGINE}/algorithms/dp_fts_de/config.py",
        old="colluding >= self.threshold:",
        new="colluding >= self.present:",
        tests=(
            f"{_TESTS}/test_aggregate.py"
            "::test_a_figure_is_finite_below_the_threshold_of_the_shares_alone",
        ),
    ),
    Mutant(
        name="noise_between_messages",
        breaks="Noise is drawn before an agent says anything that a server could time.",
        file=f"{_ENGINE}/federation/phases.py",
        old="x = measure.part(self._agent, w) + noise",
        new="x = measure.part(self._agent, w) + draw_share(self._d, self._scale, self._noise)",
        tests=(f"{_TESTS}/test_aggregate.py::test_noise_is_drawn_before_an_agent_says_anything",),
    ),
    Mutant(
        name="settings_taken_on_trust",
        breaks="An agent sends nothing to a server with other settings than were agreed upon.",
        file=f"{_ENGINE}/federation/remote.py",
        old="        if found.config != agreed:\n",
        new="        if before and found.config != agreed:\n",
        tests=(
            f"{_TESTS}/test_federation_remote.py"
            "::test_a_greeting_that_differs_from_what_was_agreed_is_refused",
        ),
    ),
    Mutant(
        name="both_secrets_of_an_agent",
        breaks="Nobody hands out shares of an agent's seed and of its key.",
        file=f"{_ENGINE}/federation/phases.py",
        old="for v, (key, _) in held.items() if v not in U_3}",
        new="for v, (key, _) in held.items()}",
        tests=(
            f"{_TESTS}/test_aggregate.py"
            "::test_shares_are_given_of_the_seed_or_of_the_key_never_of_both",
        ),
    ),
    Mutant(
        name="a_sum_of_few",
        breaks="An agent helps to open a sum of at least T agents.",
        file=f"{_ENGINE}/federation/phases.py",
        old="or len(agents) < config.present or",
        new="or",
        tests=(
            f"{_TESTS}/test_aggregate.py"
            "::test_an_agent_helps_to_open_no_other_sum_than_it_agreed_to",
        ),
    ),
    Mutant(
        name="more_sums_than_rounds",
        breaks="An agent opens no more sums than rounds were agreed, whatever the server says.",
        file=f"{_ENGINE}/federation/phases.py",
        old="        if self._n_opened >= self._config.n_rounds:",
        new="        if False:",
        tests=(
            f"{_TESTS}/test_aggregate.py"
            "::test_an_agent_opens_no_more_sums_than_rounds_were_agreed",
        ),
    ),
    Mutant(
        name="opened_before_it_is_paid_for",
        breaks="The ledger is charged before anybody helps to open a sum.",
        file=f"{_ENGINE}/sessions/aggregation.py",
        old="    elif current.phase != MASKED or _admit(server, current):\n"
        "        current.phase += 1",
        new="    else:\n        current.phase += 1\n        if current.phase == OPEN:\n"
        "            _admit(server, current)",
        tests=(f"{_TESTS}/test_aggregate.py::test_a_vault_that_refuses_the_charge_opens_nothing",),
    ),
    Mutant(
        name="a_sum_that_nobody_paid_for",
        breaks="A round that another server has released is not opened once more.",
        file=f"{_ENGINE}/sessions/aggregation.py",
        old="    if known is not None:\n"
        "        server._publish(current.t, lambda: known)\n    return known is None",
        new="    return True",
        tests=(
            f"{_TESTS}/test_aggregate.py"
            "::test_no_sum_is_opened_of_a_round_that_another_server_has_released",
        ),
    ),
    Mutant(
        name="few_shares_are_enough",
        breaks="More than half of the agents and those that collude have to help to open a sum.",
        file=f"{_ENGINE}/algorithms/dp_fts_de/config.py",
        old="        return (self.n_agents + self.colluders) // 2 + 1",
        new="        return self.n_agents // 2",
        tests=(f"{_TESTS}/test_aggregate.py::test_nobody_gets_enough_shares_of_both_secrets",),
    ),
)

_COPIES = "tests/contracts/test_copied_study.py::test_another_point_of_a_copy_is_refused"

_EDGES: tuple[Mutant, ...] = (
    Mutant(
        name="links_are_replaced",
        breaks="A file that is written whole never stands in place of a link.",
        file=f"{_ENGINE}/files.py",
        old="    if path.is_symlink():\n",
        new="    if False:\n",
        tests=(
            "tests/contracts/test_written_files.py"
            "::test_a_witness_at_a_link_lets_no_worker_draw_twice",
        ),
    ),
    Mutant(
        name="another_point_of_records",
        breaks="A release of losses is never shown under a trial at another point.",
        file=f"{_ENGINE}/sessions/records.py",
        old="        if row is not None and not self._shows(row, params):\n",
        new="        if False:\n",
        tests=(_COPIES,),
    ),
    Mutant(
        name="another_point_of_rewards",
        breaks="A privatised reward is never shown under a trial at another point.",
        file=f"{_ENGINE}/sessions/rewards.py",
        old='            if known and f"{point}/{trial}" not in known:\n',
        new="            if False:\n",
        tests=(_COPIES,),
    ),
    Mutant(
        name="runs_of_one_object_apart",
        breaks="One object in several studies says what they amount to together.",
        file=f"{_ENGINE}/privacy/figures.py",
        old="math.hypot(*mus)",
        new="max(mus)",
        tests=("tests/contracts/test_several_runs.py::test_studies_of_one_object_say_their_sum",),
    ),
)

MUTANTS = (
    *_EDGES, *_RECORDS, *_VAULT, *_REWARDS, *_FEDERATION, *_ROWS, *_AGENTS, *_TOLD, *_CERTIFIED,
    *_AGGREGATE,
)  # fmt: skip
