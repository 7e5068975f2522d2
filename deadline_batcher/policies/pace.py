"""How large batches must be for the load to fit: the least sizes, and how long they take to gather.

Small batches answer soon but each pays the fixed part of its time; near the largest load only
large ones keep up, and a GPU that idles a moment for a larger batch is paid back by every part in
it. From the plan (rates, deadlines, execution times) and the GPUs that are READY this finds the
least share of the deadlines that gathering and running may take so that the load fits the pool.
"""

from __future__ import annotations
import os
from deadline_batcher.plan import Plan

FULL = int(float(os.environ.get("PACE_FULL","0.95"))*100)
OTH = float(os.environ.get("PACE_OTH","1"))
SCALE=1_000_000

class Pace:
    def __init__(self, plan: Plan, usable) -> None:
        self._plan = plan
        self._tables = {}
        self._usable = usable

    def of(self, ready: int):
        """(size, patience_ns) for every category with `ready` GPUs."""
        found = self._tables.get(ready)
        if found is None:
            found = self._tables[ready] = self._find(ready)
        return found

    def _find(self, ready):
        plan=self._plan
        cats=plan.categories
        N=range(len(cats))
        # parts in 10^15 ns; work: millionths of a GPU
        rates=[sum(10**15//l.cycle_ns for l in plan.lines if l.category==n) for n in N]
        spare=[plan.deadline_ns(n)-plan.result_ns-plan.timer_ns for n in N]
        sizes=[1 for n in N]
        steps=[];work=0
        for n in N:
            if not rates[n]: continue
            pts=[]
            for b in range(1,len(cats[n].wcet_ns)+1):
                if self._usable[n][b]!=b: continue
                own=cats[n].wcet_ns[b-1]; share=(max((b-1)*10**15//rates[n],own//ready)+own)*SCALE//max(spare[n],1)
                if b>1 and share>SCALE: break
                cost=rates[n]*cats[n].wcet_ns[b-1]//b//10**9
                if pts and cost>=pts[-1][1]: continue
                while len(pts)>1 and (pts[-1][1]-cost)*(pts[-1][0]-pts[-2][0])>=(pts[-2][1]-pts[-1][1])*(share-pts[-1][0]): pts.pop()
                pts.append((share,cost,b))
            work+=pts[0][1]
            for (s0,c0,_),(s1,c1,b) in zip(pts,pts[1:]):
                steps.append((-((c0-c1)*SCALE//max(1,s1-s0)),n,c0-c1,b))
        steps.sort()
        for _,n,saved,b in steps:
            if work*100<=FULL*ready*SCALE: break
            work-=saved; sizes[n]=b
        out=[]
        for n in N:
            b=sizes[n]
            if b==1: out.append((1,plan.deadline_ns(n))); continue
            own=cats[n].wcet_ns[b-1]
            other=max((cats[o].wcet_ns[sizes[o]-1] for o in N if o!=n and rates[o]),default=0)
            other=max(other,(sum(cats[o].wcet_ns[sizes[o]-1] for o in N if o!=n and rates[o]))//ready)
            fill=(b-1)*10**15//rates[n]
            wait=max(0,min(fill,spare[n]-own-int(OTH*other)))
            out.append((b,plan.deadline_ns(n)-wait))
        return out
