"""What Slurm's daemons and commands print of jobs, steps and nodes. Pure.

An end that Slurm or the user planned explains every error that comes with it.
May touch: this package's nouns and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.rules import (
    NONE,
    PEER,
    SELF,
    SEV1,
    SEV2,
    SEV3,
    UNKNOWN,
    Finding,
    Rule,
    Text,
    finding,
)
from detectors.verdict import Kind, Tier

DECISIVE, HARD, SUMMARY, VICTIM = Tier.DECISIVE, Tier.HARDWARE, Tier.SUMMARY, Tier.VICTIM

NO_PLUGIN = (
    r"error: [^\n]*((cannot|couldn't) (find|load|create|initialize)[^\n]*(plugin|context)|"
    "aborting$|unable to initialize|"
    r"unable to create [^\n]*(namespace|cgroup)|pars(e|ing) error |security violation, ping)"
)

# fmt: off
RULES = (
    Rule("slurm.time_limit", Kind.TIME_LIMIT, NONE,
         ("due to time limit", "exceeded job time limit", "term_runlimit", "walltime",
          "timelimit", " timeout ", "jobstate=timeout", "jobstate=deadline",
          "longer than the specified deadline",
          "due to deadline", "time limit exhausted", "reached time limit", "exceeded time limit",
          "timed out"),
         r"due to time limit|exceeded (job )?time limit|term_runlimit|walltime[^\n]*exceeded|"
         r"jobstate=(timeout|deadline)|specified deadline|\btimeout +(\d+-)?\d\d:\d\d:\d\d|"
         r"\btimeout +0:\d|"
         r"due to deadline|time ?limit (reached|exhausted|exceeded)|reached time limit|"
         r"jobid=\d+[^\n]* (exceeded time limit|timed out)",
         tier=DECISIVE),
    Rule("slurm.preempted", Kind.PREEMPTION, NONE,
         ("due to preemption", "preempted", "preempting", "spot instance interruption",
          "spot interruption"),
         r"due to preemption|job\w*[^\n]{0,40}\bpreempted|state=preempted|\bpreempted +(\d|job)|"
         "preempting job|spot (instance )?interruption", tier=DECISIVE,
         unless=r"(?s)^(?!.*has not timed out).*submitit[^\n]*sigusr|either the leader"),
    Rule("slurm.requeue_limit", Kind.TIME_LIMIT, NONE, ("sigusr", "auto-requeue", "requeing job"),
         "(caught signal|received|got) (signal )?sigusr[12]|handling auto-requeue|requeing job",
         tier=DECISIVE, unless="due to preemption|has not timed out"),
    Rule("slurm.cancelled", Kind.CANCELLED, NONE,
         ("cancelled", "jobstate=cancelled", "due to job requeue", "force terminated job",
          "interrupt (one more", "request_kill_job rpc", "rpc_kill_job",
          "forcing job termination"),
         r"\*\*\* job \d+[^\n]* cancelled at (?![^\n]*due to (node|time|preempt))|"
         r"jobstate=cancelled|cancelled by \d+|due to job requeue|srun: interrupt|"
         r"signal 9 to jobid|cancelled\+ |\bcancelled +(\d+-)?\d\d:\d\d:\d\d|"
         "rpc_kill_job: |forcing job termination", tier=DECISIVE,
         unless="due to node failure|node_fail|exceeded (job )?memory limit|oom.kill event"),
    Rule("slurm.step_cancelled", Kind.CANCELLED, NONE, ("cancelled at",),
         r"\*\*\* step [\d.]+ on \S+ cancelled at [\dt:-]+ \*\*\*", tier=SUMMARY,
         unless=r"job step aborted|exited with exit code|due to|error:(?!.*\*\*\*)"),
    Rule("slurm.task_failure", Kind.EXITED, SEV2, ("due to task failure",), blame=UNKNOWN,
         tier=SUMMARY),
    Rule("kubernetes.evicted", Kind.STORAGE, SEV2,
         ("low on resource: ephemeral", "low on resource: disk",
          "ephemeral local storage usage exceeds"), tier=HARD, recurs=True),
    Rule("kubernetes.pod_evicted", Kind.EXITED, SEV2, ("evicted",),
         r"\b(workers?|pods?) (is|are|was|were|has been|have been) evicted|reason: \w*evicted|"
         r"\d/\d +evicted", blame=UNKNOWN, tier=SUMMARY),
    Rule("kubernetes.mount", Kind.STORAGE, SEV2,
         ("mountvolume.setup failed", "failedmount"), tier=HARD),
    Rule("kubernetes.memory", Kind.HOST_OOM, SEV2,
         ("low on resource: memory", "due to memory pressure"), tier=HARD),
    Rule("kubernetes.node", Kind.LOST, SEV1,
         ("nodenotready", "nodelost", "node is not ready", "host ec2", "instance terminated",
          "kubelet stopped posting"), blame=PEER, tier=DECISIVE),
    Rule("slurm.step_aborted", Kind.EXITED, SEV2,
         ("job step aborted", "timed out waiting for job step", "first task exited",
          "aborted before step completely launched"), blame=UNKNOWN, tier=Tier.HINT),
    Rule("slurm.node_fail.job", Kind.LOST, SEV1, ("node_fail", "boot_fail"), tier=DECISIVE),
    Rule("slurm.node_fail", Kind.LOST, SEV1,
         ("node failure on", "due to node failure", "due to failure of node", "on failed node",
          "not responding, setting down", "are still not ready", "setting down",
          "unexpectedly rebooted", "not responding", "missing from batch node",
          "lost communication", "resumetimeout", "wrong with the boot", "node_down",
          "powered down unexpectedly", "down*", "fail*", "due to node",
          "cancelled by node failure",
          "marked down"),
         r"node failure on|due to (node (\S+ )?failure|failure of node)|by node failure|"
         "on failed node|setting down|marked down|"
         r"(?s:reason[^\n]*nodelist.*not responding)|"
         r"still not ready|unexpectedly rebooted|nodes? \S+ not responding|"
         "missing from batch node|lost communication with|resumetimeout|boot of the nodes|"
         r"reason( set to: |=)not responding|state=down\S*not_responding|\b(down|fail)\*|"
         "not responding *(root|"
         "slurm)", blame=PEER, tier=DECISIVE, unless=r"nfs: server|node_fail\b"),
    Rule("slurm.kill_failed", Kind.HANG, SEV1,
         ("kill task failed", "not ending with signals", "unkillable", "killtaskfailed"),
         tier=HARD),
    Rule("slurm.oom", Kind.HOST_OOM, SEV2,
         ("oom-kill event", "oom_kill event", "out_of_me", "out of memory handler",
          "out-of-memory handler", "exceeded memory limit", "exceeded job memory limit",
          "step memory limit", "oom killed", "oom killer", "node running low on memory",
          "oomkilled", "term_memlimit", "oom failure", "memory limit exceeded",
          "task 0: out of memory",
          "tasks: out of memory",
          ": out of memory"),
         r"oom[-_]kill event|\bout_of_me\w*|out[- ]of[- ]memory handler|exceeded (job |"
         "step )?memory|oom ?kill(ed|er)|node running low on memory|term_memlimit|"
         r"srun: error: [^\n]*out of memory|jobid=\d+ oom failure|memory limit exceeded", tier=HARD,
         unless="cuda out of memory|potential root causes|detected 0 oom"),
    Rule("slurm.credential", Kind.CONFIGURATION, SEV1,
         ("credential expired", "job credential", "munge", "protocol authentication",
          "replayed credential", "rewound credential", "invalid credential"),
         "credential (expired|revoked|replayed|invalid)|(invalid|expired|rewound|"
         r"replayed) (job )?credential|munge[^\n]*(fail|error|cannot|not running|invalid)|"
         "protocol authentication error|clock skew", tier=HARD),
    Rule("slurm.prolog_hung", Kind.HANG, SEV1, ("prolog", "epilog"),
         r"(prolog|epilog) (is )?hung", tier=HARD),
    Rule("slurm.prolog", Kind.EXITED, SEV1,
         ("prolog", "epilog", "batch job complete failure", "launch failed requeued held",
          "requeued in held state", "launch failure limit", "requeued held",
          "slurmd could not", "job env setup error", "slurmstepd failed to send",
          "_forkexec_slurmstepd", "_send_slurmstepd_init",
          "plugin stack initialization failed", "launch_failed_requeued",
          "requeued_in_held"),
         r"batch job complete failure|job env setup error|(prolog|epilog)[^\n]*(fail|error|"
         r"status|time(d |-)?out|"
         "unable|exit code [1-9])|requeued[_ ](in[_ ])?held|launch failure limit|"
         "slurmd could not (execve|set up|connect)|slurmstepd failed to send|"
         r"_(forkexec|send)_slurmstepd\w*: [^\n]*(fail|error|unable)|"
         "plugin stack initialization failed", tier=HARD),
    Rule("slurm.registration", Kind.CONFIGURATION, SEV1,
         ("low realmemory", "low real_memory", "low socket", "low cpu", "low tmpdisk",
          "low tmp disk", "count too low", "corespec differ", "bad core count",
          "reported but not configured", "no network address found", "not a superset of",
          "restrictedcorespergpu", "could not unpack gres", "changed and jobs are using"),
         tier=HARD),
    Rule("slurm.spool", Kind.STORAGE, SEV1, ("spooldir is full", "spool dir is full"), tier=HARD),
    Rule("slurm.duplicate", Kind.SOFTWARE, SEV1, ("duplicate jobid",), tier=HARD),
    Rule("slurm.refused", Kind.CONFIGURATION, SEV1,
         ("_slurm_rpc_node_registration", "node registration failed"),
         r"node_registration node=\S+ invalid argument|node registration "
         r"failed", tier=Tier.SUMMARY),
    # In the words of whoever drained the node, mostly a script.
    Rule("slurm.reason", Kind.SOFTWARE, SEV1, ("reason=",),
         r"state=\S*(drain|down|fail)[^\n]*reason=[^\n]*\b(errors?|fail\w*|bad|broken|faulty|down|lost|"
         "missing|unhealthy|hung|stuck|degraded)\\b", tier=Tier.HINT),
    Rule("slurm.hardware", Kind.CONFIGURATION, NONE,
         ("node configuration differs from hardware", "have a different slurm.conf"),
         tier=Tier.HINT),
    Rule("slurm.health", Kind.SOFTWARE, SEV1,
         ("health check failed", "healthcheck failed", "nhc:", "health_check"),
         r"health ?check failed|nhc: [^\n]*(fail|error)|health_check[^\n]*fail", tier=Tier.SUMMARY),
    Rule("slurm.request", Kind.CONFIGURATION, SEV2,
         ("requested node configuration", "invalid account", "invalid partition", "invalid qos",
          "unable to allocate resources", "batch job submission failed",
          "more processors requested", "execve()", "couldn't chdir", "invalid --",
          "memory specification can not", "invalid generic resource", "job violates",
          "invalid user id", "requested partition configuration", "unable to create step",
          "couldn't start container", "failed to import docker image", "container start failed",
          "unable to layout tasks", "not found in the job", "failed to distribute tasks", "pyxis: ",
          "lookup failure for node", "mutually exclusive", "cpu bind request",
          "cpu binding outside", "sbatch: error: ", "salloc: error: "),
         "requested (node|partition) configuration|invalid (account|partition|qos|generic|user)|"
         "unable to allocate resources: (?!.*(contact|timed out|connect))|"
         r"submission failed: (?!.*(contact|timed out|connect))|more processors|execve\(\)|"
         "couldn't chdir|memory specification|job violates|unable to create step|"
         "couldn't start container|failed to import docker|container start failed|layout tasks|"
         "gres[^\n]*not found in the job|failed to distribute tasks|lookup failure for node|"
         r"cpu bind(ing outside| request)|are mutually exclusive|pyxis: [^\n]*(failed|couldn't)|"
         r"(sbatch|salloc): error: (?![^\n]*(contact|connect|timed out|retry|revoked|zero bytes|"
         r"plugin))|"
         r"error: pyxis: (?! *\[(info|warn)|[^\n]*printing)",
         recurs=True),
    Rule("slurm.controller.away", Kind.REFUSED, SEV3,
         ("slurm controller (connect failure", "controller (shutdown", "controller (receive"),
         blame=PEER, tier=Tier.PROCESS),
    Rule("slurm.controller", Kind.NETWORK, SEV3,
         ("unable to contact slurm controller", "socket timed out on send/recv",
          "zero bytes were transmitted", "unable to establish controller",
          "could not establish a configuration source", "slurm backup controller",
          "communication connection failure", "slurm_receive_msg", "slurm_send",
          "unable to contact", "slurmdbd", "transport endpoint", "control machine address"),
         "contact slurm|on send/recv|zero bytes were|establish (control|a configuration)|"
         "backup controller in standby|communication connection failure|slurm_(receive|"
         r"send)\w*[^\n]*(error|timed out|fail|zero|not connected)|slurmdbd[^\n]*(refused|"
         "timed out|unable|"
         "fail|not responding)", blame=UNKNOWN, tier=Tier.SYMPTOM),
    Rule("slurm.task_aborted", Kind.EXITED, SEV2,
         ("aborted (core", ": aborted", ": segmentation fault", ": killed", ": bus error"),
         r"srun: error: [^\n]*tasks? [\d,-]+: (aborted|segmentation|illegal|floating)",
         tier=SUMMARY),
    Rule("slurm.task_killed", Kind.EXITED, SEV2, (": killed",),
         r"srun: error: [^\n]*tasks? [\d,-]+: killed", blame=UNKNOWN, tier=SUMMARY),
    Rule("slurm.task_exit", Kind.EXITED, SEV2, (": exited with exit code",), tier=Tier.HINT),
    Rule("slurm.wtermsig", Kind.EXITED, SEV2, ("wtermsig", "wexitstatus", "jobstate=failed"),
         r"wtermsig \d|wexitstatus [1-9]|jobstate=failed", blame=UNKNOWN, tier=SUMMARY),
    Rule("slurm.script_gone", Kind.CONFIGURATION, SEV1,
         ("slurm_script: no such file", "container_p_join", "container_g_join"), tier=HARD),
    Rule("slurm.sacct_failed", Kind.EXITED, SEV2, ("failed",),
         r"\bfailed +((\d+-)?\d\d:\d\d:\d\d +)?\d+:\d+\b|"
         r"(?m:^ *\d+(_\d+)?(\.\w+)?\+? (.* )?failed *$)", tier=SUMMARY),
    Rule("slurm.daemon_fatal", Kind.CONFIGURATION, SEV1, ("fatal: ",),
         r"slurmd(\[\d+\])?: fatal: |"
         r"(?m:^(\[[\dt:.-]+\] )?fatal: [^\n]*\b(gres|nvml|cgroups?|slurmd)\b)",
         tier=SUMMARY),
    # What its plugins cannot do without, a daemon does not start without.
    Rule("slurm.plugin", Kind.CONFIGURATION, SEV1,
         ("slurmd: error: ", "slurmd initialization failed"),
         NO_PLUGIN + "|slurmd initialization failed", tier=SUMMARY),
    Rule("slurm.controller_plugin", Kind.CONFIGURATION, SEV2, ("slurmctld: error: ",),
         NO_PLUGIN + "|not a valid controller", tier=SUMMARY),
    Rule("slurm.controller_fatal", Kind.CONFIGURATION, SEV2, ("fatal: ",),
         r"slurm(ctld|dbd)(\[\d+\])?: fatal: ", tier=SUMMARY),
)
# fmt: on

SEGFAULT = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): segmentation fault")


def find_common_segfault(text: Text) -> Iterator[Finding]:
    """A crash of tasks on several nodes at once is the program's, not a node's."""
    matches = list(SEGFAULT.finditer(text.lower))
    if len({match[1] for match in matches}) >= 2:
        yield finding(text, matches[0].start(), Tier.PROCESS, "slurm.common_segfault",
                      Kind.USER_BUG, SEV2, SELF, recurs=True)  # fmt: skip
