import time, json, psycopg, pytest
from engine.operation import perform
from engine.schema import migrate
from engine.relay.handover import Handover
from engine.store.operations import Operations
from engine.store import *
from engine import sessions

def accesses(c):
    c.execute("SELECT pg_stat_force_next_flush()")
    return {r[0]:r[1:] for r in c.execute("SELECT s.relname, seq_tup_read, coalesce(idx_tup_fetch,0), heap_blks_read+heap_blks_hit, idx_blks_read+idx_blks_hit FROM pg_stat_user_tables s JOIN pg_statio_user_tables USING (relid)").fetchall()}

def test_probe(database):
    with psycopg.connect(database, autocommit=True) as c:
        migrate(c,"store"); migrate(c,"transport")
    c=sessions.connect(database,"x",sessions.INDEXED); o=psycopg.connect(database,autocommit=True)
    ops=Operations(); h=Handover()
    def all_ops(i):
        e=Execution(id=f"e{i}",definition_id="d",status="RUNNING")
        yield "commit", lambda: perform(c, ops.commit(Commit(execution=e,emits=[(f"e{i}",Event(id=f"x{i}",kind="k"))],timers=[TimerOp("schedule","p",1.0)],spawns=[(f"c{i}","r",{})],trace={"a":1},processed_event_id="m")))
        yield "commit2", lambda: perform(c, ops.commit(Commit(execution=e,timers=[TimerOp("cancel","p",1.0)],trace={"a":1},processed_event_id="m2")))
        yield "cas", lambda: perform(c, ops.commit(Commit(execution=e,processed_event_id="m3")))
        yield "batch", lambda: perform(c, ops.commit_many([Commit(execution=Execution(id=f"b{i}.{j}",definition_id="d"),trace={"a":1},timers=[TimerOp("schedule","p",1e12)]) for j in range(5)]))
        yield "load", lambda: perform(c, ops.load(f"e{i}"))
        yield "lfe", lambda: perform(c, ops.load_for_event(f"e{i}","m"))
        yield "isp", lambda: perform(c, ops.is_processed(f"e{i}","m"))
        yield "outbox", lambda: perform(c, ops.pending_outbox(10))
        yield "pspawns", lambda: perform(c, ops.pending_spawns(10))
        yield "ackspawn", lambda: perform(c, ops.ack_spawn(1))
        yield "ackout", lambda: perform(c, ops.ack_outbox(1))
        yield "append", lambda: perform(c, ops.append_trace(f"e{i}",{"b":1}))
        yield "trace", lambda: perform(c, ops.read_trace(f"e{i}"))
        yield "list", lambda: perform(c, ops.list_executions(limit=10))
        yield "list2", lambda: perform(c, ops.list_executions(limit=10,status="DONE",definition_id="zz"))
        yield "list3", lambda: perform(c, ops.list_executions(limit=10,status=["RUNNING","DONE"]))
        yield "due", lambda: perform(c, ops.due_timers(5.0,10))
        yield "deltimer", lambda: perform(c, ops.delete_timer(f"e{i}","p",7.0))
        yield "sweep", lambda: perform(c, h.sweep(10,5.0))
        yield "spawn", lambda: perform(c, h.spawn(0,10))
        yield "move", lambda: perform(c, h.move(4,10,0))
        yield "ack", lambda: perform(c, h.ack([1,2]))
        yield "bcast", lambda: perform(c, h.broadcasts(10))
    for t in ("executions","outbox","processed_events","timers","spawns","trace","transport_messages","transport_groups"):
        o.execute(f"ALTER TABLE {t} SET (autovacuum_enabled=off)")
    for i in range(12):
        for n,f in all_ops(i):
            f()
    for t in ("executions","outbox","processed_events","timers","spawns","trace","transport_messages","transport_groups"):
        o.execute(f"DELETE FROM {t}")
    o.execute("VACUUM ANALYZE")
    for i in range(20,32):
        for n,f in all_ops(i):
            f()
    for t in ("executions","outbox","processed_events","timers","spawns","trace","transport_messages","transport_groups"):
        o.execute(f"DELETE FROM {t}")
    N=100000
    o.execute("INSERT INTO executions SELECT 'x'||g,'d',json_build_object('id','x'||g,'definition_id','d'),1,'RUNNING' FROM generate_series(1,%s) g",(N,))
    o.execute("INSERT INTO outbox (target_id,event) SELECT 'x'||g,'{\"id\":\"e'||g||'\",\"kind\":\"k\"}' FROM generate_series(1,%s) g",(N,))
    o.execute("INSERT INTO processed_events SELECT 'x'||g,'e' FROM generate_series(1,%s) g",(N,))
    o.execute("INSERT INTO timers SELECT 'x'||g,'p',CASE WHEN g<=%s THEN 2.0 ELSE 1e10 END FROM generate_series(1,%s) g",(N//2,N))
    o.execute("INSERT INTO spawns (parent_id,child_id,root_path,context) SELECT 'x'||g,'c'||g,'r','{}' FROM generate_series(1,%s) g",(N,))
    o.execute("INSERT INTO trace SELECT 'x'||g%%1000,g/1000,'{}' FROM generate_series(0,%s) g",(N-1,))
    for state in ("cached","fresh","analyzed"):
        if state=="fresh":
            c.close(); c=sessions.connect(database,"x",sessions.INDEXED)
        if state=="analyzed":
            o.execute("ANALYZE"); c.close(); c=sessions.connect(database,"x",sessions.INDEXED)
        for i in (100,101):
          for n,f in all_ops(f"{state}{i}"):
            c.execute("SELECT pg_stat_force_next_flush()"); c.execute("SELECT 1")
            o.execute("SELECT pg_stat_clear_snapshot()")
            b=accesses(o); t=time.perf_counter()
            f()
            d=time.perf_counter()-t
            c.execute("SELECT pg_stat_force_next_flush()"); c.execute("SELECT 1")
            o.execute("SELECT pg_stat_clear_snapshot()")
            a=accesses(o)
            diff={k:tuple(x-y for x,y in zip(a[k],b[k])) for k in a if a[k]!=b[k]}
            diff={k:v for k,v in diff.items() if max(v)>300}
            if diff or d>0.02: print(state,i,n,f"{d*1000:.1f}ms",diff)
