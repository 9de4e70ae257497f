"""Slips in the engine: mechanisms, accounting, the vault, and who holds secrets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ENGINE = "privbo_plugins"
_TESTS = "tests/engine"

_RECORDS = (
    Mutant(
        name="one_record_decides_the_type_of_all",
        breaks="An odd record changes its own entry only, and never whether a trial fails.",
        file=f"{_ENGINE}/convert.py",
        old="[_number(entry) for entry in _entries(returned, len(returned))]",
        new="_entries(returned, len(returned))",
        tests=(
            f"{_TESTS}/test_convert.py::test_one_record_of_any_kind_changes_its_own_entry_only",
        ),
    ),
    Mutant(
        name="one_row_decides_the_width_of_all",
        breaks="How wide the rows of a list are is declared, and never taken from a row.",
        file=f"{_ENGINE}/convert.py",
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
        file=f"{_ENGINE}/sanitize.py",
        old="if type(error) is kind), None)",
        new="if isinstance(error, kind)), None)",
        tests=(
            f"{_TESTS}/test_sanitize.py"
            "::test_the_words_of_what_only_looks_like_an_own_error_are_not_told",
        ),
    ),
    Mutant(
        name="frames_that_know_a_user",
        breaks="What a ledger raises holds no frame with a user's name or reward.",
        file=f"{_ENGINE}/sanitize.py",
        old="        del args, kwargs\n",
        new="",
        tests=(
            f"{_TESTS}/test_sanitize.py"
            "::test_frames_of_a_refused_user_hold_neither_name_nor_reward",
        ),
    ),
    Mutant(
        name="search_blind_to_other_workers",
        breaks="Workers at once are sent to different points, and none to where trials failed.",
        file=f"{_ENGINE}/sessions/records.py",
        old='proposal = self._known().algorithm.propose(slot, points["out"], points["failed"])',
        new="proposal = self._known().algorithm.propose(slot)",
        tests=(
            f"{_TESTS}/test_value_search.py"
            "::test_workers_at_once_are_sent_to_different_points_and_a_second_process_to_the_same",
        ),
    ),
    Mutant(
        name="planned_norm_known_to_the_noise_only",
        breaks="Gradients are clipped to the norm that their sensitivity is made of.",
        file=f"{_ENGINE}/algorithms/dp_gibo/algorithm.py",
        old="statistic(self._gradients(blocks, W), B)",
        new="statistic(self._gradients(blocks, W), 1.0)",
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
        "            tx.mark(UNPROTECTED, TEST_NOISE)\n"
        "        payload = order.draw(self._noise)\n",
        new="        payload = order.draw(self._noise)\n"
        "        order.charge(tx)\n"
        "        if self.uses_test_noise:\n"
        "            tx.mark(UNPROTECTED, TEST_NOISE)\n",
        tests=(
            f"{_TESTS}/test_session.py"
            "::test_a_ledger_that_is_already_full_refuses_before_anything_is_drawn",
        ),
    ),
    Mutant(
        name="a_damaged_witness_knows_nothing",
        breaks="A run whose rollback_guard is damaged draws nothing.",
        file=f"{_ENGINE}/store/rollback_guard.py",
        old="            known = _understood(read_json(self._path, _FORMAT))\n"
        "        except (KeyError, TypeError, ValueError):\n",
        new="            known = _understood(read_json(self._path, _FORMAT))\n"
        "        except (KeyError, TypeError, ValueError):\n"
        "            return _Known(self._run)\n",
        tests=(
            f"{_TESTS}/test_rollback_guard.py::test_a_damaged_file_is_refused_and_left_as_it_is[cut]",
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
        old='not_covered=(*texts_of("records")["not_covered"], *words.not_covered)',
        new="not_covered=words.not_covered",
        tests=(
            "tests/contracts/test_runs.py"
            "::test_a_foreign_algorithm_recommends_the_best_that_was_released",
        ),
    ),
)

_VAULT = (
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
        name="budget_off_by_one",
        breaks="A user is refused before an evaluation that the user's budget does not hold.",
        file=f"{_ENGINE}/sessions/rewards.py",
        old="evaluations = Counter([self.mechanism.evaluation])",
        new="evaluations = Counter[Cost]()",
        tests=(f"{_TESTS}/test_rewards.py::test_a_user_is_refused_before_anything_is_drawn",),
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
        file=f"{_ENGINE}/sessions/broadcasts.py",
        old="            if self.config.noise_multiplier != 0:\n",
        new="            if self.config.noise_multiplier != 0 and noisy.any():\n",
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
        old='begin_or_join(self._vault, f"{PREFIX}{self._name}"',
        new='begin_or_join(self._vault, f"{PREFIX}{self._name}/{id(self)}"',
        tests=(
            f"{_TESTS}/test_po_gp_ucb_curator.py"
            "::test_a_table_is_drawn_once_whoever_asks_and_whatever_its_rows_are_now",
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
        name="an_answer_file_remembers_no_vault",
        breaks="A vault that knows less than the file of its answers draws nothing.",
        file=f"{_ENGINE}/sessions/answer_file.py",
        old="            run.guarded_by(_AnswerRollbackGuard(self, run))",
        new="            _AnswerRollbackGuard(self, run)",
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
)

_CERTIFIED = (
    Mutant(
        name="studies_on_the_same_records_not_added",
        breaks="Runs on the same records cost the root of their summed squares together.",
        file=f"{_ENGINE}/sessions/certificates.py",
        old="mu=math.sqrt(math.fsum(claim.mu**2 for _, claim in own)),",
        new="mu=max(claim.mu for _, claim in own),",
        tests=(f"{_TESTS}/test_certificate.py::test_runs_on_the_same_records_add_up_as_squares",),
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
        file=f"{_ENGINE}/sealing.py",
        old="HKDF(hashes.SHA256(), KEY, None, purpose.encode())",
        new="HKDF(hashes.SHA256(), KEY, None, b'')",
        tests=(f"{_ENGINE}/sealing.py", "--doctest-modules"),
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
        name="noise_between_messages",
        breaks="Noise is drawn before an agent says anything that a server could time.",
        file=f"{_ENGINE}/federation/phases.py",
        old="x = measure.part(self._agent, w) + noise",
        new="x = measure.part(self._agent, w) + draw_share(self._d, self._scale, self._noise)",
        tests=(f"{_TESTS}/test_aggregate.py::test_noise_is_drawn_before_an_agent_says_anything",),
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
        name="opened_before_it_is_paid_for",
        breaks="The ledger is charged before anybody helps to open a sum.",
        file=f"{_ENGINE}/sessions/aggregation.py",
        old="        if self.phase == MASKED:\n"
        "            self.token = ledger.admit(self.measure)\n",
        new="        if self.phase == MASKED:\n            self.phase = OPEN\n"
        "            self.token = ledger.admit(self.measure)\n            self.phase = MASKED\n",
        tests=(f"{_TESTS}/test_aggregate.py::test_a_vault_that_refuses_the_charge_opens_nothing",),
    ),
    Mutant(
        name="a_sum_that_nobody_paid_for",
        breaks="A round that another server has released is not opened once more.",
        file=f"{_ENGINE}/sessions/aggregation.py",
        old="            if not self.token:  "
        "# another server of this run has released the round meanwhile\n"
        "                return True\n",
        new="",
        tests=(
            f"{_TESTS}/test_aggregate.py"
            "::test_no_sum_is_opened_of_a_round_that_another_server_has_released",
        ),
    ),
)

_COPIES = "tests/contracts/test_copied_study.py::test_another_point_of_a_copy_is_refused"

_EDGES: tuple[Mutant, ...] = (
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
