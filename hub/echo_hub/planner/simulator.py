"""The whole system, event by event: learner, broadcast, nodes that come and go, admission.

Leases are granted by the hub's own `LeaseBook`, capped by its own `Paces`, shared among waiting
nodes as `granting` shares them, and batches are taken from its own `Buffer`; which nodes are
active is decided by whatever is passed as `controller`, which is the one the hub uses. What is
simulated is the world around them: how long things take, who leaves, and what is rejected.

One thread, no wall clock: the same seed gives the same run.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from echo_hub.planner.system import Churn, Node, Run, broadcast_bound, group_seconds, longest_of
from echo_hub.planner.world import Change, Controller, Result, World
from echo_hub.rollouts.buffer import Buffer, ScoredGroup
from echo_hub.rollouts.leases import LeaseBook, LeaseRules
from echo_hub.rollouts.pace import Paces

_SECRET = bytes(32)


@dataclass(eq=False)
class _Worker:
    node: Node
    key: bytes
    group_s: float
    version: int | None = None
    fetching: int | None = None
    there: bool = False
    active: bool = True
    life: int = 0
    running: dict[bytes, float] = field(default_factory=dict)
    """End of each group in work."""
    begun: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    """Of each group in work: the version that samples it, and the seconds of work it takes."""
    active_since: float = 0.0


class Simulation:
    """One run on one fleet.

    Args:
        changes: how the world changes; regimes begin with an update.
        decide_s: seconds between the controller's decisions.
        train_spread: standard deviation of T_train, in means.
    """

    def __init__(
        self,
        run: Run,
        nodes: Sequence[Node],
        *,
        rng: random.Random,
        churn: Churn | None = None,
        controller: Controller | None = None,
        changes: Sequence[Change] = (),
        decide_s: float = 10.0,
        train_spread: float = 0.05,
    ) -> None:
        self.now = 0.0
        self._run, self._rng, self._churn = run, rng, churn or Churn()
        self._controller, self._decide_s = controller, decide_s
        self._changes = sorted(changes, key=lambda change: change.update)
        self._world = World()
        self._train_spread = train_spread
        self._shape = longest_of(run.group_size, run.spread)
        number = iter(range(2**62))
        most = 2 * max((node.groups for node in nodes), default=1)  # as the hub: and the next ones
        self._book = LeaseBook(
            LeaseRules(
                groups_per_update=run.groups,
                staleness=run.staleness,
                group_size=run.group_size,
                seconds=run.lease_s,
                per_node=most,
            ),
            secret=_SECRET,
            new_id=lambda: next(number).to_bytes(16, "big"),
        )
        self._buffer = Buffer()
        self._paces = Paces(lease_s=run.lease_s, most=most)
        self._workers = {
            node.key: _Worker(node, node.key.encode(), group_seconds(run, node)) for node in nodes
        }
        self._waiting: dict[str, None] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._checking = 0
        self._training = 0
        self._published = 0
        self._waits: list[float] = []
        self._busy: list[float] = []
        self._starts: list[float] = []
        self._since = 0.0
        self._lags: list[Counter[int]] = []
        self._stale = 0
        self._money = 0.0
        self._bills: list[float] = []
        self._switched: list[tuple[float, str]] = []

    # --- the clock ----------------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (when, self._sequence, what))

    def play(self, updates: int, *, warm_up: int = 0, patience_s: float = 1e9) -> Result:
        """Run for so many updates; gives up after `patience_s` simulated seconds."""
        for worker in self._workers.values():
            self._arrive(worker)
        if self._controller is not None:
            self._decide()
        self._expire()
        self._share_out()
        while len(self._busy) < updates and self._events and self.now < patience_s:
            self.now, _, what = heapq.heappop(self._events)
            what()
        return self._result(warm_up)

    def _result(self, warm_up: int) -> Result:
        done = len(self._busy)
        waits, busy = self._waits[:done], self._busy
        kept = slice(min(warm_up, done), done)
        waited, worked = sum(waits[kept]), sum(busy[kept])
        waited += self.now - self._since if not self._training else 0.0
        begun = self._bills[warm_up - 1] if 0 < warm_up <= len(self._bills) else 0.0
        lags: Counter[int] = Counter()
        for counted in self._lags[kept]:
            lags.update(counted)
        return Result(
            updates=max(0, done - warm_up),
            seconds=waited + worked,
            waited_s=waited,
            money=(self._bill() - begun) / 3600,
            lags=lags,
            stale=self._stale,
            waits=tuple(waits),
            busy=tuple(busy),
            switched=tuple(self._switched),
            starts=tuple(self._starts),
        )

    def _bill(self) -> float:
        """Money times 3600 owed so far to the nodes, for the time they were active."""
        running = sum(
            worker.node.price * (self.now - worker.active_since)
            for worker in self._workers.values()
            if worker.active and worker.there
        )
        return self._money + running

    # --- the learner --------------------------------------------------------------------------

    def _take(self) -> None:
        if self._training:
            return
        run, version = self._run, self._book.version
        batch, stale = self._buffer.take(run.groups, version, run.staleness)
        self._stale += len(stale)
        if batch is None:
            return
        while self._changes and self._changes[0].update <= version:
            self._change(self._changes.pop(0).world)
        self._lags.append(Counter(version - group.version for group in batch))
        self._waits.append(self.now - self._since)
        self._starts.append(self.now)
        self._training = run.groups
        seconds = run.train_s * self._world.train * self._noise(self._train_spread)
        self._at(self.now + seconds, lambda: self._trained(seconds))

    def _noise(self, spread: float) -> float:
        if not spread:
            return 1.0
        sigma = math.sqrt(math.log1p(spread * spread))
        return self._rng.lognormvariate(-sigma * sigma / 2, sigma)

    def _trained(self, seconds: float) -> None:
        self._busy.append(seconds)
        self._since = self.now
        self._training = 0
        self._book.version += 1
        self._bills.append(self._bill())
        if self._controller is not None:
            self._controller.trained(seconds, self.now)
        if self._book.version % self._run.kappa == 0:
            self._published = self._book.version
            for worker in self._workers.values():
                if worker.there:
                    self._fetch(worker)
        self._take()
        self._share_out()

    def _change(self, world: World) -> None:
        before, self._world = self._world.gone, world
        for key, worker in self._workers.items():
            if key in world.gone and worker.there:
                self._leave(worker, silent=True, back=False)
            elif key in before and key not in world.gone:
                self._arrive(worker)

    # --- nodes --------------------------------------------------------------------------------

    def _fetch(self, worker: _Worker) -> None:
        """Begin to download the newest version, unless a download is under way."""
        if worker.fetching is not None or not worker.there:
            return
        if worker.version is not None and worker.version >= self._published:
            return
        worker.fetching = self._published
        seconds = self._transfer_s(worker) * self._noise(0.1)
        if self._run.pauses:
            worker.running = {lease: end + seconds for lease, end in worker.running.items()}
        life = worker.life
        self._at(self.now + seconds, lambda: self._fetched(worker, life, seconds))

    def _transfer_s(self, worker: _Worker) -> float:
        run, links = self._run, self._world.links
        if run.broadcast_s is not None:
            return run.broadcast_s * links
        there = [other.node for other in self._workers.values() if other.there]
        together = broadcast_bound(
            run.artifact,
            hub_up=run.hub_up,
            ups=[node.up for node in there],
            downs=[math.inf],
        )
        return max(together, run.artifact / worker.node.down) * links

    def _fetched(self, worker: _Worker, life: int, seconds: float) -> None:
        if worker.life != life:
            return
        worker.version, worker.fetching = worker.fetching, None
        if self._controller is not None:
            self._controller.fetched(worker.node.key, seconds, self.now)
        self._fetch(worker)
        self._ask(worker)
        self._share_out()

    def _ask(self, worker: _Worker) -> None:
        """A node with room waits for leases."""
        ready = worker.there and worker.active and worker.version is not None
        paused = self._run.pauses and worker.fetching is not None
        if ready and not paused and worker.node.rate and len(worker.running) < worker.node.groups:
            self._waiting.setdefault(worker.node.key)
        else:
            self._waiting.pop(worker.node.key, None)

    def _elsewhere(self) -> int:
        return self._checking + len(self._buffer) + self._training

    def _share_out(self) -> None:
        """As `Granter.share_out`, for nodes that were all proven long ago."""
        if not self._waiting or not self._book.has_work(self._elsewhere()):
            return
        waiting = list(self._waiting)
        for number, key in enumerate(waiting):
            worker = self._workers[key]
            version = worker.version
            assert version is not None
            elsewhere = self._elsewhere()
            share = -(-self._book.work(version, elsewhere) // (len(waiting) - number))
            room = worker.node.groups - len(worker.running)
            most = min(room, share, self._paces.limit(worker.key) - self._book.held[worker.key])
            if most <= 0:
                continue
            granted = self._book.grant(worker.key, version, most, elsewhere=elsewhere, now=self.now)
            for lease in granted:
                self._start(worker, lease.lease_id)
            if granted:
                self._ask(worker)

    def _start(self, worker: _Worker, lease: bytes) -> None:
        mean, deviation = self._shape
        seconds = worker.group_s * self._noise(deviation / mean)
        worker.running[lease] = self.now + seconds
        assert worker.version is not None
        worker.begun[lease] = worker.version, seconds
        life = worker.life
        self._at(self.now + seconds, lambda: self._finish(worker, lease, life))

    def _finish(self, worker: _Worker, lease: bytes, life: int) -> None:
        end = worker.running.get(lease)
        if worker.life != life or end is None:
            return
        if end > self.now + 1e-9:  # put off by a download
            self._at(end, lambda: self._finish(worker, lease, life))
            return
        del worker.running[lease]
        version, seconds = worker.begun.pop(lease)
        if self._controller is not None:
            self._controller.worked(worker.node.key, 1, seconds / worker.node.groups, self.now)
        self._answered(worker, lease, version)
        self._ask(worker)
        self._share_out()

    def _answered(self, worker: _Worker, lease: bytes, version: int) -> None:
        """A submission arrives: its lease is closed, and it goes on to its checks."""
        held = self._book.get(lease)
        if held is None:  # expired
            return
        self._paces.answered(worker.key, held.issued_at, self.now)
        self._book.answer(lease)
        following = self._book.version + (1 if self._training else 0)
        if following - version > self._run.staleness:  # as the hub's first checks find it
            self._stale += 1
            self._book.give_back(held)
            return
        self._checking += 1
        group: ScoredGroup | None = ScoredGroup(0, lease, worker.key, version, [], [])
        if self._rng.random() < self._run.rejected:
            self._book.give_back(held)
            group = None
        self._at(self.now + self._run.check_s, lambda: self._checked(group))

    def _checked(self, group: ScoredGroup | None) -> None:
        self._checking -= 1
        if group is not None:
            self._buffer.add(group)
        self._take()
        self._share_out()

    # --- coming and going ---------------------------------------------------------------------

    def _arrive(self, worker: _Worker) -> None:
        if worker.there or worker.node.key in self._world.gone:
            return
        worker.there, worker.life = True, worker.life + 1
        worker.version = worker.fetching = None
        worker.active, worker.active_since = self._controller is None, self.now
        if self._controller is not None:
            self._controller.joined(worker.node.key, self.now)
        self._fetch(worker)
        if not math.isinf(self._churn.stay_s):
            life = worker.life
            stay = self._rng.expovariate(1 / self._churn.stay_s)
            self._at(self.now + stay, lambda: self._churned(worker, life))

    def _churned(self, worker: _Worker, life: int) -> None:
        if worker.life == life and worker.there:
            self._leave(worker, silent=self._rng.random() < self._churn.silent, back=True)

    def _leave(self, worker: _Worker, *, silent: bool, back: bool) -> None:
        if worker.active:
            self._money += worker.node.price * (self.now - worker.active_since)
        worker.there, worker.life = False, worker.life + 1
        if not silent:
            self._book.evict(worker.key)
        worker.running.clear()
        worker.begun.clear()
        self._waiting.pop(worker.node.key, None)
        if self._controller is not None:
            self._controller.left(worker.node.key, self.now)
        if back:
            away = self._churn.away_s * self._rng.expovariate(1.0)
            self._at(self.now + away, lambda: self._arrive(worker))
        self._share_out()

    def _expire(self) -> None:
        """Once a second, as the hub: leases whose time is up go out again."""
        if self._book.expire(self.now):
            self._share_out()
        self._at(self.now + 1.0, self._expire)

    # --- activation ---------------------------------------------------------------------------

    def _decide(self) -> None:
        assert self._controller is not None
        chosen = self._controller.decide(self.now)
        for key, worker in self._workers.items():
            wanted = key in chosen
            if worker.there and worker.active != wanted:
                if worker.active:
                    self._money += worker.node.price * (self.now - worker.active_since)
                worker.active, worker.active_since = wanted, self.now
                self._switched.append((self.now, f"{key} {worker.life}"))
                self._ask(worker)
        self._at(self.now + self._decide_s, self._decide)
        self._share_out()


def simulate(
    run: Run,
    nodes: Sequence[Node],
    *,
    seed: int = 0,
    updates: int = 200,
    warm_up: int = 20,
    churn: Churn | None = None,
) -> Result:
    """A plain simulation: every node active, nothing changes."""
    simulation = Simulation(run, nodes, rng=random.Random(seed), churn=churn)
    return simulation.play(updates, warm_up=warm_up, patience_s=1000 * updates * run.train_s)
