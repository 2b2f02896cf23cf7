"""MPI, its launchers, UCX and the verbs below them, beside what they share with others. Pure.

May touch: this package's nouns and rules.
"""

from __future__ import annotations

from detectors.rules import PEER, SEV1, SEV2, SEV3, UNKNOWN, Rule
from detectors.verdict import Kind, Tier

HARD, PROCESS, SYMPTOM, VICTIM = Tier.HARDWARE, Tier.PROCESS, Tier.SYMPTOM, Tier.VICTIM

# fmt: off
RULES = (
    Rule("mpi.daemon", Kind.LOST, SEV1,
         ("lost communication with a remote daemon", "daemon has unexpectedly failed"), blame=PEER,
         tier=HARD),
    Rule("mpi.peer", Kind.LOST, SEV2,
         ("peer process has unexpectedly disconnected", "peer mpi process (no longer",
          "unexpectedly closed its end", "peer hung up"), blame=PEER, tier=Tier.VICTIM),
    Rule("mpi.start", Kind.CONFIGURATION, SEV2,
         ("mpi_init failed", "pmix_init failed", "opal_init failed", "orte_init failed",
          "requested component was not found", "pmi support and therefore cannot",
          "unable to find the specified executable", "unable to reliably start",
          "not enough slots", "fatal error in pmpi_init", "fi_open domain failed",
          "in internal_init", ": invalid port"), recurs=True),
    # MPICH's classes of errors: what the program handed to it.
    Rule("mpi.argument", Kind.USER_BUG, SEV2, ("fatal error in ",),
         r"fatal error in (p?mpi|internal)_\w+: (invalid (rank|count|tag|communicator|datatype|"
         "buffer|group|root|argument)|message truncated)", tier=HARD),
    # libfabric below MPICH, and Omni-Path below either.
    Rule("mpi.fabric", Kind.NETWORK, SEV3,
         ("ofi poll failed", "mpidi_ofi_handle_cq_error", "completion queue exhaustion"),
         blame=UNKNOWN, tier=Tier.DECISIVE),
    Rule("psm.port", Kind.PORT_DOWN, SEV1,
         ("hfi units are active", "open hfi unit", "psm2 was unable to open", "hfi unit: -1"),
         tier=HARD),
    Rule("mpi.connect", Kind.NETWORK, SEV3,
         ("failed to tcp connect to a peer", "unable to complete a tcp connection",
          "retry count between two mpi processes", "pmix error: unreachable",
          "orte error: unreachable"), blame=UNKNOWN, tier=SYMPTOM),
    Rule("mpi.shared", Kind.SHM, SEV2, ("during shared memory initialization",), tier=HARD),
    # As verbs name the end of a piece of work: whose buffers were at fault.
    Rule("verbs.local", Kind.DMA, SEV1,
         ("local protection error", "local access violation", "local length error",
          "local qp operation error", "ibv_wc_loc_prot_err"), tier=HARD, unless="async event"),
    Rule("verbs.remote", Kind.DMA, SEV1,
         ("remote access error", "remote invalid request", "remote operation error",
          "ibv_wc_rem_access_err", "ibv_wc_rem_inv_req_err", "ibv_wc_rem_op_err"), blame=PEER,
         tier=HARD, unless="got completion"),
)
# fmt: on
