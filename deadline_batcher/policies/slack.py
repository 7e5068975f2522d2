"""LazyBatching's slack rule: wait for more parts while the predicted slack is not negative.

Rule: with n parts waiting, one more may be waited for while the head's due leaves (n + 1) times
the execution time of a single part: the published predictor takes a batch to last as long as its
members one by one. A batch that is full, or whose slack is spent, starts; least slack first.
Source: Choi et al., HPCA 2021, whose catching up node by node needs control of the runtime that
no Triton gives; the slack rule is what transfers. Needs: execution times.
"""

from __future__ import annotations

from deadline_batcher.board import Board
from deadline_batcher.policies.policy import Choice, Hold, Rule


class Slack(Rule):
    """See the module."""

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The batch whose slack ended first, if one's has."""
        close_at, number = min((self._close_at_ns(board, n), n) for n in board.occupied)
        if close_at > now_ns:
            return Hold(close_at)
        queue = board.queues[number]
        left_ns = queue.head.pool_due_at_ns - self._plan.result_ns - now_ns
        size = min(board.cap_for(number, left_ns), len(queue))
        return Choice(board.free[0], number, size)

    def _close_at_ns(self, board: Board, number: int) -> int:
        queue, wcet_ns = board.queues[number], board.wcet[number]
        if len(queue) >= len(wcet_ns):
            return 0
        reserve_ns = self._plan.result_ns + self._plan.timer_ns
        predicted_ns = (len(queue) + 1) * wcet_ns[0]
        # On profiles that are worse than one by one, the worst case of the next size counts.
        predicted_ns = max(predicted_ns, wcet_ns[len(queue)])
        return queue.head.pool_due_at_ns - reserve_ns - predicted_ns
