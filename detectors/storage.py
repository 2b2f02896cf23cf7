"""File systems and checkpoints: full, gone, slow or broken. Pure.

May touch: this package's nouns and rules.
"""

from __future__ import annotations

from detectors.rules import NONE, PEER, SEV1, SEV2, SEV3, Rule
from detectors.verdict import Kind, Tier

FULL = (
    "no space left on device", "storagefull", "enospc", "disk quota exceeded", "edquot",
    "disk is full", "quota exceeded", "not enough space on the disk",
    "not enough free space", "[errno 28]", "[errno 122]", "设备上没有空间", "磁盘配额",
    "kein speicherplatz mehr", "aucun espace disponible", "no queda espacio",
    "空き領域がありません",
)  # fmt: skip

# What a store refuses for good; all else it may grant at the next try.
DENIED = (
    r"\((accessdenied|nosuch(bucket|key)|invalidaccesskeyid|signaturedoesnotmatch|expiredtoken|"
    r"40[134])\)|\b(object|bucket|blob|key) \S+ not found\b|unable to locate credentials|"
    r"api_core\.exceptions\.(forbidden|notfound|unauthorized|permissiondenied)"
)

# fmt: off
RULES = (
    Rule("disk.full", Kind.STORAGE, SEV2, FULL, tier=Tier.HARDWARE, recurs=True,
         unless=r"(/dev/shm|shared memory|posix_fallocate|/torch_|nccl-)[^\n]*no space left|"
                r"no space left[^\n]*(/dev/shm|/torch_|shared memory)|/cgroup/[^\n]*no space left"),
    Rule("data.broken", Kind.STORAGE, SEV2,
         ("tarfile.readerror", "unidentifiedimageerror", "too long to download",
          "arrowinvalid: parquet", "image file is truncated", "corrupted record at"),
         tier=Tier.PROCESS, recurs=True, unless="checkpoint"),
    Rule("nfs.slow", Kind.STORAGE, SEV3,
         ("nfs: server", "not responding, still trying", "not responding, timed out"),
         r"nfs: server [^\n]*not responding|server [^\n]*not responding, (still trying|"
         "timed out)", blame=PEER, tier=Tier.HARDWARE),
    Rule("nfs.state", Kind.STORAGE, SEV2,
         ("nfs4_reclaim", "lock reclaim failed", "nfs: state manager", "nfs4_schedule",
          "nfs: __nfs4", "exiting with error eio"), tier=Tier.HARDWARE),
    Rule("lustre.evicted", Kind.STORAGE, SEV2,
         ("transport endpoint shutdown", "was evicted by", "client was evicted",
          "evicting client", "[errno 108]"), blame=PEER, tier=Tier.HARDWARE),
    Rule("lustre.starting", Kind.NON_FAILURE, NONE, ("connect to node",),
         r"_connect to node \S+ failed: rc = -(16|11|114)\b", blame=PEER, tier=Tier.DECISIVE),
    Rule("lustre.waiting", Kind.STORAGE, SEV3,
         ("in progress operations using this service will wait", "lustreerror", "lustre:",
          "lnet:", "lneterror"),
         r"will wait for recovery|lustreerror:|lneterror:|lustre: [^\n]*(timed out|was lost|"
         r"network error|"
         r"slow reply|unable to|not available)|lnet: [^\n]*(timed out|timeout|error)",
         blame=PEER, tier=Tier.HARDWARE, unless=r"evicted|\) assertion\("),
    # The server has given up on this client: what it had not written is lost.
    Rule("fs.ceph.evicted", Kind.STORAGE, SEV2, ("ceph: ",),
         r"ceph: [^\n]*(closed our session|reconnect denied|dropping (dirty|unsafe)|"
         "rejected session|blocklisted|blacklisted)", blame=PEER, tier=Tier.DECISIVE),
    Rule("fs.server", Kind.STORAGE, SEV3,
         ("libceph:", "ceph:", "beegfs", "mmfs", "gpfs", "weka", "glusterfs", "rpc: "),
         r"(libceph|ceph): [^\n]*(down|hung|socket closed|connect error|timed out|lost)|(beegfs|"
         r"weka|glusterfs|gpfs|mmfs)[^\n]*(unreachable|timed? ?out|communication error|"
         "disconnected|lost|deadlock|expelled|ejected|disk failure|expired|failed|error)",
         blame=PEER, tier=Tier.HARDWARE),
    Rule("fs.stale", Kind.STORAGE, SEV2,
         ("stale file handle", "estale", "[errno 116]", "stale nfs"), blame=PEER,
         tier=Tier.HARDWARE),
    Rule("fs.read_only", Kind.STORAGE, SEV2, ("read-only file system", "erofs", "[errno 30]"),
         tier=Tier.HARDWARE, recurs=True),
    Rule("fs.gone", Kind.STORAGE, SEV2,
         ("transport endpoint is not connected", "[errno 107]"), blame=PEER, tier=Tier.HARDWARE,
         unless="srun: error|slurm_"),
    Rule("fs.io", Kind.STORAGE, SEV2,
         ("input/output error", "[errno 5]", "i/o error", "输入/输出错误",
          "eingabe-/ausgabefehler", "no locks available", "[errno 37]",
          "software caused connection abort", "[errno 103]",
          "unable to lock file", "[errno 121]", "remote i/o error", "iostream error",
          "file write failed", "unexpected pos", "pytorchfilewriter", "failed writing file",
          "write error",
          "short write"), tier=Tier.HARDWARE,
         unless=r"connect to |prov_errno|nvme\d|dev sd|when calling the |\bucx\b|mlx5dv"),
    Rule("fs.mount", Kind.STORAGE, SEV1,
         ("check_fs_mount", "mount.", "not mounted", "mount(2)", "mounting", "df command"),
         r"check_fs_mount|mount[^\n]*(failed|timed out|not mounted)|not mounted",
         tier=Tier.HARDWARE, unless="transport endpoint|cgroup"),
    Rule("object.store", Kind.STORAGE, SEV3,
         ("botocore", "googleapis", "google.api_core", "s3", "clienterror", "gcsfs", "slowdown",
          "endpointconnectionerror", "when calling the", "azure.core.exceptions", "fsspec",
          "fstimeouterror", "hdfserror", "load failed: "),
         r"google\.api_core\.exceptions|botocore[\w.]*(error|exception)|s3[^\n]*(slowdown|"
         r"internalerror|reduce your request)|endpointconnectionerror|gcsfs[\w.]*error|"
         r"azure\.core\.exceptions|when calling the \w+ operation|fstimeouterror|hdfserror|"
         r"(down|up)load failed: [^\n]*\b(s3|gs|az|abfss?|hdfs|oss):", blame=PEER,
         tier=Tier.PROCESS,
         unless=DENIED),
    Rule("object.denied", Kind.CONFIGURATION, SEV2,
         ("when calling the", " not found", "unable to locate credentials",
          "api_core.exceptions"), DENIED,
         tier=Tier.PROCESS, recurs=True),
    Rule("checkpoint.corrupt", Kind.CHECKPOINT, SEV2,
         ("pytorchstreamreader failed", "central directory", "invalid header or archive",
          "headertoolarge", "headertoosmall", "metadataincompletebuffer", "invalidheader",
          "invalid load key", "pickle data was truncated", "unpickling stack underflow",
          "ran out of input", "file size doesn't match", "unexpected eof, expected",
          "corrupted checkpoint", "checkpoint is corrupt", "checkpoint file is corrupt",
          "corrupt checkpoint", "checksum mismatch", "hash mismatch",
          "is not a distributed checkpoint", "crc mismatch", "not a zip file", "badzipfile",
          "storage has wrong byte size", "storage has wrong size", "incomplete metadata",
          "file is not a valid", "unable to open file (truncated", "metadata mismatch",
          "error while deserializing header", "checkpoint is incomplete", "appears to be corrupt",
          "file in archive is not in a subdirectory", "archive is corrupted", "truncated file",
          "bytes were requested, but", "data loss", "dataloss", "data_loss",
          "invalid magic number; corrupt file", "corrupt file", "could not read bytes",
          "failed locating file", "weights from pytorch checkpoint file",
          "is not a folder containing"),
         tier=Tier.HARDWARE, recurs=True,
         unless="streamwriter|corrupted record at|load\\(from_parent"),
    Rule("checkpoint.damaged", Kind.CHECKPOINT, SEV2, ("corrupt", "truncated", "incomplete"),
         r"(checkpoint|ckpt|safetensors|weights|\.pth?\b|\.distcp|shard|archive)[^\n]*\b"
         r"(corrupt|truncated|incomplete)|(corrupt\w*|truncated|incomplete) (checkpoint|ckpt|"
         "shard)",
         tier=Tier.HARDWARE, recurs=True),
)
# fmt: on
