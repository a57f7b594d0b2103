"""Defects that were fixed, as replacements that put them back. Owns the list; `mutants.py` puts them back.

`by` says what must notice: a world of `tests/faults`, the fuzzer, or a test of its own where no world reaches: the
world's processes have no descriptors, disks or connections that could run out.
"""

from __future__ import annotations

from typing import NamedTuple

CORE_WORLD, CONTROLLER_WORLD, FUZZER = "core", "controller", "fuzz"
WITHIN = {CORE_WORLD: 6000, CONTROLLER_WORLD: 3000, FUZZER: 3_000_000}  # seeds; mutated messages


class Mutant(NamedTuple):
    defect: str
    by: str  # core, controller, fuzz or a test
    file: str
    old: str
    new: str


CHECKS, CORE = "roles/checks.py", "flow/core.py"
DRIVEN = (
    Mutant("no deadlines: a hung worker is never set aside", "core", CORE,
           "            if look.reason:\n", "            if False:\n"),
    Mutant("a late duplicate of Published takes engines back", "core", CORE,
           "(newest is None or event.weights >= newest)", "True"),
    Mutant("one bad env worker quarantines tasks", "core", CORE,
           "self.watch.has_others(worker.role) and self.streaks", "False and self.streaks"),
    Mutant("the first env worker after a start is a witness", "core", "flow/watch.py",
           "(expected > 1 and self._now < since_s + OTHERS_S)", "False"),
    Mutant("one failed save ends the run", "core", CORE,
           "if self.failed_saves >= self.rules.save_tries:", "if True:"),
    Mutant("a step that always raises is not quarantined", "core", CORE,
           "if count < limit or self.tally.tasks[task].quarantined:",
           "if kind is Kind.STEP or count < limit or self.tally.tasks[task].quarantined:"),
    Mutant("redundant groups that are stale from the start", "core", "flow/admission.py",
           "version >= self.batches.next_step - self.rules.alpha", "True"),
    Mutant("a trajectory is as old as its first token", "controller", "flow/trajectories.py",
           "trajectory.first_version < 0 or event.first_version < trajectory.first_version",
           "trajectory.first_version < 0"),
    Mutant("tokens older than any answer", "controller", CHECKS,
           "if sampled.size and sampled.min() < trajectory.first_version:", "if False:"),
    Mutant("a turn with a torn frame", "controller", CHECKS,
           "if len(frames) != 1 or len(frames[0]) & 3:", "if False:"),
    Mutant("names of any length", "controller", "wire/messages.py",
           "Name = Annotated[str, Meta(max_length=255)]", "Name = str"),
    Mutant("a trainer joins as an attempt that nobody announced", "controller", CHECKS,
           "    def judge(self, hello: ms.Hello) -> str:\n", "    def judge(self, hello: ms.Hello) -> str:\n"
           "        self.trainer_attempt = max(self.trainer_attempt, hello.attempt)\n"),
    Mutant("an answer may name another trajectory", "controller", CHECKS,
           "        if trajectory.id != m.trajectory:\n            raise Malformed(f\"request {m.request} is about "
           "{trajectory.id}, not {m.trajectory}\")\n        if len(frames)", "        if len(frames)"),
    Mutant("an end without frames", "controller", CHECKS, "if len(frames) != 4:", "if False:"),
    Mutant("an end with wrong lengths", "controller", CHECKS,
           "if not lengths or min(lengths) < 1 or 4 * sum(lengths) != size:", "if False:"),
    Mutant("tokens of versions that do not exist", "controller", CHECKS,
           "if not 0 <= first <= newest or not 0 <= last <= newest:", "if False:"),
    Mutant("rewards that are not finite", "controller", CHECKS, "if not math.isfinite(m.reward):", "if False:"),
    Mutant("a trainer joins at any version", "controller", CHECKS,
           "if hello.capacity and not 0 <= hello.version <= self._core.version:", "if False:"),
    Mutant("any key may play any role", "controller", "wire/hub.py", "            if type(message) in known[1]:\n",
           "            if True:\n"),
    Mutant("a damaged checkpoint is never skipped", "controller", "roles/checkpoints.py",
           "        except DamagedError as error:\n", "        except ZeroDivisionError as error:\n"),
    Mutant("payloads of trajectories that are gone are kept", "controller", "roles/payloads.py",
           "for store in (self.turns, self.answers, self.ended, self.asked_again):", "for store in ():"),
    Mutant("times without a bound", "fuzz", "wire/messages.py", "Seconds = Finite\n", "Seconds = float\n"),
    Mutant("a number of ranks without a bound", "fuzz", "wire/messages.py",
           "Ranks = Annotated[int, Meta(ge=1, le=1 << 16)]", "Ranks = int"),
)  # fmt: skip

ASIDE, CRASHES = "tests/flow/test_core_aside.py::", "tests/roles/test_checkpoint_crashes.py::"
TESTED = (
    Mutant("a prefix that is always missing", "tests/roles/test_checks.py::test_a_turn_that_stays_without_its_tokens_"
           "fails_the_trajectory", CHECKS,
           "if not m.full and self._payloads.asked_again.get(m.trajectory) == (m.issue, m.turn):", "if False:"),
    Mutant("a step that was not asked for is committed", "tests/roles/test_checks.py::test_a_step_that_was_not_asked_"
           "for_can_not_enter_the_ledger", CHECKS,
           "if m.version != core.version + 1 or m.step != core.version or not core.batches.is_closed:", "if False:"),
    Mutant("the main loop's age in heartbeats is ignored", ASIDE + "test_a_blocked_main_loop_is_noticed_if_others_wait"
           "_for_it", CORE, "elif self.watch.is_stuck(worker, event.age_s):", "elif False:"),
    Mutant("after a jump of the clock the only env worker is a witness", ASIDE + "test_a_clock_that_jumps_makes_the_"
           "only_env_worker_no_witness", "flow/watch.py",
           "max(self._alone_s.get(role, 0.0), self._seeing_s)", "self._alone_s.get(role, 0.0)"),
    Mutant("an answer about older weights pays for newer ones", ASIDE + "test_an_answer_about_older_weights_does_not_"
           "pay_for_newer_ones", "flow/publish.py", "if self._is_older(worker, weights, epoch):", "if False:"),
    Mutant("a trainer has a bad copy of the weights, as if it were a relay",
           "tests/roles/test_checks.py::test_only_a_relay_can_have_a_bad_copy", CORE,
           'is not None and worker.role == "relay":', "is not None:"),
    Mutant("no way back from quarantine", ASIDE + "test_a_quarantined_task_is_tried_again_and_the_pause_doubles",
           "flow/admission.py", "if now >= due_s]:", "if False]:"),
    Mutant("updates are skipped for ever", ASIDE + "test_skipped_updates_are_counted_and_told_and_end_the_run_if_they_"
           "go_on", CORE, "        if count > limit:\n", "        if False:\n"),
    Mutant("a message of many large frames", "tests/wire/test_hub.py::test_the_parts_of_a_message_are_bounded_together",
           "wire/parts.py", "        left -= len(frame)\n", ""),
    Mutant("what a kill left of a checkpoint is never swept", CRASHES + "test_a_kill_at_any_point_of_a_sweep_is_swept_"
           "by_the_next", "checkpoint_dirs.py", 'in sorted(run.checkpoints.glob("step_*")):', "in list[Path]():"),
    Mutant("older checkpoints go before the directories of the new one are on the disk", CRASHES + "test_the_new_one_"
           "is_on_the_disk_before_an_older_one_goes", "checkpoint_dirs.py",
           'for place in [directory, *(p for p in directory.rglob("*") if p.is_dir())]:', "for place in list[Path]():"),
    Mutant("traces without a budget", "tests/observe/test_trace.py::test_a_trace_stays_within_its_budget_and_still_"
           "covers_the_run", "observe/trace.py", "if self._num_bytes + len(data) > self._max_bytes:", "if False:"),
    Mutant("a ledger that is not packed", "tests/observe/test_ledger.py::test_a_large_step_takes_less_than_a_tenth",
           "observe/ledger.py", "    if columns is None:\n", "    if True:\n"),
    Mutant("a rank without the secret takes part in a transfer", "tests/weights/test_strangers.py", "weights/proofs.py",
           "if not hmac.compare_digest(answer, _answer(key, peer, own, asked[peer], asked_of_us[peer])):", "if False:"),
    Mutant("environments get every variable", "tests/envs/test_host.py::test_environment_sees_neither_run_nor_"
           "descriptors", "envs/processes.py", "if name in KEPT or name.startswith(KEPT_PREFIXES)}", "}"),
    Mutant("environments print without a limit", "tests/envs/test_host.py::test_output_of_environments_is_logged_with_"
           "their_task_and_a_flood_of_it_is_not", "envs/output.py",
           "if self.is_spent or num_bytes > self._left or num_bytes > self._total_left:", "if False:"),
    Mutant("a full disk is an unexpected position in a file", "tests/test_files.py", "files.py",
           "        if not _is_full(path, str(error)):\n", "        if True:\n"),
    Mutant("a machine that runs out of memory or disk is not told", "tests/launch/test_room.py", "processes/room.py",
           "        if level > resource.level:\n", "        if False:\n"),
    Mutant("a score that is a text is a success", "tests/rewards/test_service.py", "rewards/service.py",
           "if isinstance(success, str | bytes) or success is None:", "if False:"),
    Mutant("an agent whose connection broke uses up a restart", "tests/launch/slurm/test_agent_steps.py",
           "launch/slurm/agent_steps.py", "            self._budget.give_back(host)\n", "            pass\n"),
    Mutant("strangers keep their connections", "tests/wire/test_flood.py", "wire/hub.py",
           "router.handshake_ivl = HANDSHAKE_MS", "router.handshake_ivl = 0"),
    Mutant("no reserve of descriptors", "tests/wire/test_flood.py", "wire/gate.py",
           "self._most = hard - min(hard // 4, queue + OWN_FILES)", "self._most = hard"),
)  # fmt: skip
