"""One job from its start to its end.

One asyncio loop in the main thread holds all state. Horovod's driver lives in threads of its own
and reaches the loop through `call_soon_threadsafe` only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from hetero_hvd.config import ClusterConfig, NodesFile
from hetero_hvd.core.advice.placement_trial import TrialSettings
from hetero_hvd.core.view.queued.job_progress import JobProgress
from hetero_hvd.discovery.submission.pinned_script import place_of_script
from hetero_hvd.driver.controller import JobController
from hetero_hvd.driver.ending import JobResult, Lender, Owner, newest_in_words
from hetero_hvd.driver.guard.node_care import NodeCare
from hetero_hvd.driver.http_service import HttpService
from hetero_hvd.driver.hub_side import HubSide
from hetero_hvd.driver.membership.gpu_conflict import machines_of
from hetero_hvd.driver.network.control_socket import ControlSocket
from hetero_hvd.driver.nodes.node_discovery import NodeDiscovery, check_tls_file
from hetero_hvd.driver.output.console import Console
from hetero_hvd.driver.output.json_logs import LogLines, log_file
from hetero_hvd.driver.output.log_lines import console_log
from hetero_hvd.driver.output.ssh_tunnel import ssh_tunnel
from hetero_hvd.driver.output.status_line import StatusLine
from hetero_hvd.driver.output.terminal import TerminalStyle
from hetero_hvd.driver.placement.measurement import Measurement
from hetero_hvd.driver.placement.standby import Standby
from hetero_hvd.driver.placement.trials import Trials
from hetero_hvd.driver.ready_workers import ReadyWorkers
from hetero_hvd.driver.termination import Termination
from hetero_hvd.driver.traces import TraceOrders
from hetero_hvd.errors import ConfigError, UserError
from hetero_hvd.exit_codes import EXIT_FAILED, EXIT_TERMINATED, SIGNALLED, exit_of_user_error
from hetero_hvd.messages import NodesPriced
from hetero_hvd.run.records.earlier_run import EarlierRun
from hetero_hvd.run.records.origin import origin_of
from hetero_hvd.run.records.run_folder import RunFolder, run_folder
from hetero_hvd.run.records.writer import Recorder
from hetero_hvd.run.sinks.observer import SinkObserver, close_all
from hetero_hvd.run.sinks.sink import shown
from hetero_hvd.run.tracking.begin_and_end import (
    UNLABELLED,
    RunLabels,
    publish_end,
    run_started,
    try_report,
    write_summary,
)
from hetero_hvd.run.tracking.final_report import as_text
from hetero_hvd.run.tracking.speed_store import carry_over
from hetero_hvd.security import descriptors

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25

LEAVE_SECONDS = 10.0
"""For the workers to end by themselves when the training is done."""

KILL_SECONDS = 3.0


def run_job(
    nodes_file: NodesFile,
    command: tuple[str, ...],
    *,
    resume: EarlierRun | None = None,
    labels: RunLabels = UNLABELLED,
    lender: Lender | None = None,
    termination: Termination,
    style: TerminalStyle | None = None,
    trial: TrialSettings | Measurement | None = None,
) -> int:
    """Train until the workers are done.

    Args:
        nodes_file: The nodes and the job's settings; followed while the job runs.
        command: The user's script (a first word ending in `.py`) or program, with its arguments.
        resume: To go on from its newest checkpoint; None: from the beginning.
        labels: For the record.
        lender: Whose machines they are; None: nobody takes them away.
        termination: Tells of Ctrl-C, SIGTERM and SIGHUP.
        style: How it is shown; None: as lines without colours.
        trial: Of placements while it trains, or of a setting, with which it ends; None: neither.

    Returns:
        The training's exit code; 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP.

    Raises:
        UserError: The job cannot start or go on, for a reason that the user can remove.
    """
    job = nodes_file.current.job
    descriptors.raise_limit()
    before = resume.folder if resume is not None else None
    lender = lender or Owner()
    with run_folder(job.output, before) as folder:
        log_lines = LogLines(folder.run_id) if job.log_format == "json" else None
        with log_file(folder.path / "logs" / "driver.log", log_lines):
            carry_over(before, folder.path)
            result = asyncio.run(
                _run(
                    nodes_file,
                    command,
                    folder,
                    resume,
                    labels=labels,
                    log_lines=log_lines,
                    lender=lender,
                    console=Console(style=style),
                    termination=termination,
                    trial=trial,
                )
            )
    lender.ended(result)
    return result.exit_code


async def _run(
    nodes_file: NodesFile,
    command: tuple[str, ...],
    folder: RunFolder,
    resume: EarlierRun | None,
    *,
    labels: RunLabels,
    log_lines: LogLines | None,
    lender: Lender,
    console: Console,
    termination: Termination,
    trial: TrialSettings | Measurement | None,
) -> JobResult:
    try:
        job = Job(
            nodes_file,
            command,
            folder,
            console,
            resume,
            labels=labels,
            log_lines=log_lines,
            lender=lender,
            trial=trial,
        )
        with termination.told_to(job.interrupt), console_log(console):
            return await job.run()
    finally:
        console.close()


class Job:
    """The life of a job.

    Args:
        nodes_file: See `run_job`.
        command: See `run_job`.
        folder: For logs and summary, and the run's id.
        console: Where to tell people.
        resume: See `run_job`.
        labels: See `run_job`.
        log_lines: Makes JSON of the log files; None: they are text.
        lender: See `run_job`.
        trial: See `run_job`.
    """

    def __init__(
        self,
        nodes_file: NodesFile,
        command: tuple[str, ...],
        folder: RunFolder,
        console: Console,
        resume: EarlierRun | None = None,
        *,
        labels: RunLabels = UNLABELLED,
        log_lines: LogLines | None = None,
        lender: Lender | None = None,
        trial: TrialSettings | Measurement | None = None,
    ) -> None:
        self._labels = labels
        self._lender = lender or Owner()
        self._may_resume = _may_resume(self._lender, resume, trial)
        self._nodes_file = nodes_file
        self._command = command
        self._run_id = folder.run_id
        self._output = output = folder.path
        self._console = console
        self._team = JobController(
            nodes_file.current, command, output, console, resume, log_lines=log_lines
        )
        check_tls_file(nodes_file.current.job)
        self._found = NodeDiscovery(nodes_file.current.job, console.say)
        self._recorder = Recorder(output, console.say)
        self._team.bus.subscribe(self._recorder.observe, "the record of the run")
        self._exports = [SinkObserver(url, console.say) for url in nodes_file.current.job.export]
        for url, export in zip(nodes_file.current.job.export, self._exports, strict=True):
            self._team.bus.subscribe(export.observe, f"the export to {shown(url)}")
        slots = self._team.slots
        self._care = NodeCare(folder.run_id, nodes_file.current, slots, self._team.bus, console.say)
        self._tracing = TraceOrders(lambda: slots.all, self._team.send, console.say)
        self._team.bus.subscribe(self._tracing.observe, "what tells of traces")
        self._status_line = StatusLine(console, slots.waits)
        if self._status_line.is_shown:
            self._team.bus.subscribe(self._status_line.observe, "the line that tells how it goes")
        progress = JobProgress()
        self._team.bus.subscribe(progress.observe, "what a queue is told")
        orders = {"drain": lambda target: slots.drain(str(target)), "trace": self._tracing.start}
        self._control = ControlSocket(output, orders | {"progress": progress.told})
        self._viewing = HttpService(
            nodes_file.current.job, folder, self._team, self._tracing, self._facts, say=console.say
        )
        self._hub = HubSide(nodes_file.current.job, output, self._team.bus, console.say)
        cluster, team, say = nodes_file.current, self._team, console.say
        self._trials: Trials | None = None
        if isinstance(trial, TrialSettings):
            self._trials = self._trials_of(trial)
        elif trial is not None:
            trial.end = team.end
            team.launcher.tried = trial.options
            team.bus.subscribe(trial.observe, "what measures a setting")
        self._standby = Standby(
            cluster, slots, team.bus, say, lambda: self._trials is None or self._trials.is_over
        )
        self._team.bus.subscribe(self._standby.observe, "what sets workers aside")
        self._prices: NodesPriced | None = None
        self._is_interrupted = False

    def _trials_of(self, settings: TrialSettings) -> Trials:
        team = self._team
        return Trials(
            settings,
            self._nodes_file.current.job,
            team.slots,
            team.bus,
            say=self._console.say,
            folder=self._output,
            script=place_of_script(self._command, Path.cwd()),
        )

    async def run(self) -> JobResult:
        """Start, train, end; see `run_job`."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._tracing.start_all)
        work = asyncio.create_task(self._work())
        work.add_done_callback(self._team.give_up)
        ending = JobResult(EXIT_FAILED, "an error of the driver")
        try:
            ending = await self._team.ended
        except UserError as error:
            ending = JobResult(exit_of_user_error(may_pass=error.may_pass), str(error))
            raise
        finally:
            work.cancel()
            await self._close(ending)
            # Only now: who has ended its loop may write its last state until its process ends.
            ending = ending.without(self._team.tracker.summary.not_kept)
            if self._trials is not None:
                with self._team.bus.tolerance.watching("the trial"):
                    self._trials.close()
            publish_end(
                self._team.tracker,
                self._team.bus,
                exit_code=ending.exit_code,
                reason=ending.reason,
            )
            await self._hub.reports.close()
            self._recorder.close()
            close_all(self._exports)
            self._care.end_notices()
            self._summarize(ending)
            await self._viewing.close()
        return ending

    async def _work(self) -> None:
        self._team.bus.redaction.hide(os.environ)
        await self._found.open()
        self._followed = cluster = self._found.merge(self._nodes_file.current)
        self._hide_secrets(cluster)
        origin = await asyncio.to_thread(origin_of, self._command, Path())  # git may be slow
        self._team.bus.publish(
            run_started(
                self._run_id,
                self._labels,
                command=self._command,
                origin=origin,
                nodes=(node.name for node in cluster.nodes),
                job=cluster.job,
            )
        )
        self._tell_prices(cluster)
        await self._control.listen()
        for node in cluster.nodes:
            await self._team.endpoints.towards(node)
        await self._viewing.listen()
        url = self._viewing.url
        self._hub.reports.begin(url)
        self._console.say(
            f"logs: {self._output / 'logs'}  page: {url}/  status: {url}/status", "progress"
        )
        if tunnel := ssh_tunnel(url, os.environ):
            self._console.say(f"the page on your own machine: {tunnel}", "progress")
        self._team.slots.follow(cluster)
        await asyncio.gather(self._watch(), self._lead())

    async def _watch(self) -> None:
        """Look after the workers and follow the file, as long as the job lives."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_SECONDS)
            self._status_line.look()
            self._found.listen()
            self._viewing.look()
            await self._follow_file()
            self._care.look(time.monotonic())
            for line in self._lender.news():
                self._console.say(line)
            if why := self._lender.must_end():
                self._call_off(why)
            self._team.check(slept_too_long_seconds=time.monotonic() - before - TICK_SECONDS)

    async def _lead(self) -> None:
        """Let the workers train; when all are lost at once, the ones that come after them."""
        job = self._nodes_file.current.job
        ready = ReadyWorkers(self._nodes_file, self._team, self._console.say, self._output / "logs")
        await ready.gather(job.start_timeout_seconds)
        await self._team.membership.start()
        while await self._team.all_lost.wait():
            self._team.all_lost.clear()
            await self._team.membership.start_anew()
            await ready.gather(job.elastic_timeout_seconds, is_first=False)
            await self._team.membership.start()

    async def _follow_file(self) -> None:
        news = self._nodes_file.refresh()
        if isinstance(news, ConfigError):
            for problem in news.problems:
                self._console.say(f"{problem} (the job goes on with the earlier version)")
        self._found.meet(machines_of(self._team.slots.all))
        cluster = self._found.merge(self._nodes_file.current)
        if cluster != self._followed:
            self._followed = cluster
            self._hide_secrets(cluster)
            self._tell_prices(cluster)
            self._team.slots.follow(cluster)
            self._care.follow(cluster)
            with self._team.bus.tolerance.watching("what sets workers aside"):
                self._standby.follow(cluster)
                if self._trials is not None:
                    self._trials.act()

    def _hide_secrets(self, cluster: ClusterConfig) -> None:
        """What nodes.yaml gives to the workers is found wherever it would be recorded."""
        for node in cluster.nodes:
            self._team.bus.redaction.hide(node.env)

    def _tell_prices(self, cluster: ClusterConfig) -> None:
        """To the record: the file may be another one, or gone, when somebody asks."""
        given = {node.name: node.price_per_hour for node in cluster.nodes}
        prices = NodesPriced(
            per_hour={name: price for name, price in given.items() if price is not None},
            unpriced=tuple(name for name, price in given.items() if price is None),
        )
        if prices != self._prices:
            self._prices = prices
            self._team.bus.publish(prices)

    def _facts(self) -> dict[str, Any]:
        """What the status tells of discovery."""
        return {
            "node_exporters": self._found.exporters(self._followed),
            "ignored_adverts": self._found.ignored,
            "hub_reports": self._hub.reports.facts,
        }

    def interrupt(self, number: int) -> None:
        """A signal has come: the first asks all workers to end, the second kills them."""
        name = signal.Signals(number).name
        is_repeated = {signal.SIGHUP: True, signal.SIGTERM: self._lender.repeats_sigterm}
        is_expected = is_repeated.get(signal.Signals(number), False)  # a shell sends SIGHUP twice
        if self._is_interrupted and is_expected:
            return
        if self._is_interrupted:
            self._console.say(f"{name} again: all workers are killed", "problem")
            self._team.slots.kill()
            self._viewing.hurry()
            return
        self._is_interrupted = True
        more = "SIGINT" if is_expected else "once more"
        self._console.say(f"{name}: all workers are asked to end; {more} kills them", "warning")
        is_called_off = number in (signal.SIGTERM, signal.SIGHUP)
        self._team.end(
            JobResult(SIGNALLED + number, f"ended by {name}", is_called_off=is_called_off)
        )

    def _call_off(self, why: str) -> None:
        if not self._team.ended.done():
            self._console.say(f"{why}: all workers are asked to end", "warning")
            self._team.end(JobResult(EXIT_TERMINATED, why, is_called_off=True))

    async def _close(self, ending: JobResult) -> None:
        """End every process that was started, and every thread."""
        self._console.show_status([])
        self._control.close()
        await self._care.close()
        await self._found.close()
        slots = self._team.slots
        slots.end_idle()
        await self._team.membership.close()
        if not (ending.is_orderly and await slots.wait(LEAVE_SECONDS)):
            slots.end()
            if not await slots.wait_for_grace():
                slots.kill()
                await slots.wait(KILL_SECONDS)
        await self._team.close()
        await self._hub.phases.close()

    def _summarize(self, ending: JobResult) -> None:
        facts = write_summary(
            self._output,
            self._team.tracker,
            exit_code=ending.exit_code,
            reason=self._team.bus.redaction.text(ending.reason),
            say=self._console.say,
        )
        ended, *figures = as_text(facts)
        self._console.say(ended, "problem" if ending.exit_code else "note")  # also if quiet
        for line in figures:
            self._console.say(line, "progress")
        newest = self._team.tracker.summary.newest_checkpoint
        if ending.exit_code and newest is not None and facts["replicas_equal"] is not False:
            helps = self._may_resume and ending.exit_code != exit_of_user_error(may_pass=False)
            words = newest_in_words(newest, self._output, may_resume=helps)
            self._console.say(self._team.bus.redaction.text(words))
        if facts["memberships"]:
            try_report(self._output, self._console.say)


def _may_resume(
    lender: Lender, resume: EarlierRun | None, trial: TrialSettings | Measurement | None
) -> bool:
    """Whether the user says what another start goes on from; what a measurement keeps is gone."""
    is_same_run = resume is not None and bool(resume.name)
    return isinstance(lender, Owner) and not isinstance(trial, Measurement) and not is_same_run
