"""From what could run to what does: the policy is asked, and what it must not decide is seen to.

Admission, the making of prompt items and what is overdue stand between its answers and the batch.
"""

from ..config import SchedulerConfig
from ..errors import InterfaceError
from ..items import Batch
from ..memory.admission import AdmissionQueue
from ..memory.resources import Resources
from ..policies import Policy
from ..request import Stage
from ..view import View
from .aging import Aging
from .answers import LAUNCH_STAGES, chosen, taken
from .batching import build_batch
from .item_size import item_size
from .item_window import item_window
from .offer import Offer


class Chooser:
    """Asks one policy for launches."""

    def __init__(
        self, config: SchedulerConfig, policy: Policy, resources: Resources, queue: AdmissionQueue
    ) -> None:
        self._config = config
        self._policy = policy
        self._resources = resources
        self._queue = queue
        self._aging = Aging(4 * config.num_planes * config.max_num_seqs, policy)
        self._num_prompt_launches = 0

    def launched(self, batch: Batch) -> None:
        """Take note of a launch, with which its requests have gone on."""
        self._aging.launched(batch)
        if batch.launch.runs_layers:
            self._num_prompt_launches = 0 if batch.num_decode else self._num_prompt_launches + 1

    def reset(self) -> None:
        """Forget the launches so far."""
        self._num_prompt_launches = 0

    def ask(self, offer: Offer, now: float) -> Batch | None:
        """Return what the policy wants, with what is overdue first; None if it wants nothing.

        Raises:
            InterfaceError: it wants what it must not.
        """
        masked: set[Stage] = set()
        while len(masked) < len(LAUNCH_STAGES):
            stage, admits = chosen(self._policy, self._view(offer, masked, now))
            if stage in masked:
                stage = next(other for other in LAUNCH_STAGES if other not in masked)
            if admits:
                self._admit(offer, now)
            view = self._view(offer, masked, now)
            selection = taken(self._policy, view, stage)
            if selection.candidates:
                batch = build_batch(selection, view, self._policy)
                return self._aged(batch, offer, now)
            masked.add(stage)
        return None

    def insist(self, offer: Offer, now: float) -> Batch:
        """Return a launch although the policy wants none: while none is out nothing else changes.

        A policy that has admitted nobody while nobody is active is asked again after admission.

        Raises:
            InterfaceError: it still wants none, or what it must not.
        """
        batch = None
        if not self._resources.active:
            self._admit(offer, now)
            batch = self.ask(offer, now)
        if batch is None:
            raise InterfaceError(
                f"expected from policy {self._policy.name}: a launch, since "
                f"{len(self._resources.active)} requests are ready and none is out; got none"
            )
        return batch

    def make_items(self, offer: Offer, now: float) -> None:
        """Make the prompt items that are missing, each in sight of those made before it."""
        num_tokens, policy = self._config.chunk_size, self._policy
        for request in offer.lacking_items:
            if policy.item_size is not None or policy.window is not None:
                view = self._view(offer, set(), now)
                if len(request.prompt_items) >= item_window(policy, view, request):
                    continue
                num_tokens = item_size(policy, view, request)
            item = self._resources.start_item(request, num_tokens)
            offer.add_prompt_item(request, item)
        offer.lacking_items.clear()

    def _aged(self, batch: Batch, offer: Offer, now: float) -> Batch:
        if not self._aging.may_pass_over(batch):
            return batch
        view = self._view(offer, set(), now)
        selection = self._aging.put_first(batch, view)
        return batch if selection is None else build_batch(selection, view, self._policy)

    def _admit(self, offer: Offer, now: float) -> None:
        for request in self._queue.admit():
            self._aging.admitted(request)
            offer.add(request)
        self.make_items(offer, now)

    def _view(self, offer: Offer, masked: set[Stage], now: float) -> View:
        return offer.view(
            self._config,
            masked,
            now=now,
            num_prompt_launches=self._num_prompt_launches,
            num_waiting=len(self._queue),
            num_active=len(self._resources.active),
        )
