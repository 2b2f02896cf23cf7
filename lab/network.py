"""The lab's cables: one bridge at the head, one pair of virtual interfaces a node.

What can be done to them, seen from the node:
    cut         the cable is pulled: no packet either way, no FIN, no RST
    management  IP to and from the head is dropped without a word; node to node goes on
    slow        limited rate, or delay where the kernel has netem
"""

import json
from dataclasses import dataclass

from lab import processes
from lab.errors import LabError
from lab.layout import HEAD_ADDRESS, link_name, node_address, node_number

HEAD_SETUP = f"""link set lo up
link add br0 type bridge
address add {HEAD_ADDRESS}/24 dev br0
link set br0 up
"""


@dataclass(frozen=True)
class Link:
    """The state of one node's cable."""

    up: bool
    management_cut: bool
    slow: bool


def set_up_head(head: int) -> None:
    _without_ipv6(head)
    _ip(head, HEAD_SETUP)


def plug_in(head: int, node: str, init: int) -> None:
    """Give the node its cable. The address of its card stays the same through power cycles."""
    link = link_name(node)
    _without_ipv6(init)
    unplug(head, node)
    _ip(head, f"link add {link} type veth peer name eth0 address {_hardware(node)} netns {init}\n"
              f"link set {link} master br0 up\n")  # fmt: skip
    _ip(init, f"link set lo up\naddress add {node_address(node)}/24 dev eth0\nlink set eth0 up\n")


def unplug(head: int, node: str) -> None:
    """Without power the kernel takes the cable away too, at a time of its own choice."""
    try:
        _ip(head, f"link delete {link_name(node)}\n")
    except LabError:
        if link_name(node) in _links(head):
            raise
    restore_management(head, node)


def cut(head: int, node: str) -> None:
    _ip(head, f"link set {link_name(node)} down\n")


def restore(head: int, node: str) -> None:
    _ip(head, f"link set {link_name(node)} up\n")


def cut_management(head: int, node: str) -> None:
    """ARP still passes, as through a router: the two sides time out, nothing answers 'no route'."""
    link, table = link_name(node), _table(node)
    rules = f"""
add table bridge {table}
delete table bridge {table}
table bridge {table} {{
    chain in {{ type filter hook input priority 0; iifname {link} ether type ip drop; }}
    chain out {{ type filter hook output priority 0; oifname {link} ether type ip drop; }}
}}
"""
    _nft(head, rules)


def restore_management(head: int, node: str) -> None:
    _nft(head, f"add table bridge {_table(node)}\ndelete table bridge {_table(node)}\n")


def slow_down(head: int, node: str, init: int, kilobit: int, delay_milliseconds: int) -> None:
    """Both directions. A delay needs netem; a rate alone is done by tbf, which every kernel has."""
    if delay_milliseconds:
        shape = f"netem delay {delay_milliseconds}ms rate {kilobit}kbit limit 10000"
    else:
        shape = f"tbf rate {kilobit}kbit burst 16kb latency 400ms"
    for space, device in ((head, link_name(node)), (init, "eth0")):
        try:
            _in_net(space, ["tc", "qdisc", "replace", "dev", device, "root", *shape.split()])
        except LabError as error:
            if delay_milliseconds:
                raise LabError(
                    "a delay needs the kernel module sch_netem, which cannot be used here; leave "
                    f"the delay away to limit the rate alone ({error})"
                ) from error
            raise


def speed_up(head: int, node: str, init: int) -> None:
    for space, device in ((head, link_name(node)), (init, "eth0")):
        if _shaped(space, device):
            _in_net(space, ["tc", "qdisc", "delete", "dev", device, "root"])


def links(head: int, nodes: list[str]) -> dict[str, Link]:
    """Nodes without power have no entry."""
    known = _links(head)
    tables = _in_net(head, ["nft", "list", "tables", "bridge"])
    slow = _in_net(head, ["tc", "qdisc", "show"])
    return {
        node: Link(
            up="UP" in known[link_name(node)],
            management_cut=f"table bridge {_table(node)}\n" in tables,
            slow=any(f"{kind} " in slow_line and f" {link_name(node)} " in slow_line
                     for kind in ("tbf", "netem") for slow_line in slow.splitlines()),
        )
        for node in nodes
        if link_name(node) in known
    }  # fmt: skip


def _links(head: int) -> dict[str, list[str]]:
    found = json.loads(_in_net(head, ["ip", "-json", "link", "show"]))
    return {link["ifname"]: link["flags"] for link in found}


def _shaped(space: int, device: str) -> bool:
    shown = _in_net(space, ["tc", "qdisc", "show", "dev", device])
    return "tbf" in shown or "netem" in shown


def _without_ipv6(init: int) -> None:
    """One family is enough, and addresses are there at once instead of after a search for twins."""
    switch = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
    _in_net(init, ["sh", "-c", f"! [ -e {switch} ] || echo 1 >{switch}"])


def _hardware(node: str) -> str:
    return f"02:00:0a:4d:00:{node_number(node):02x}"


def _table(node: str) -> str:
    return f"unicron_lab_{node}"


def _ip(init: int, commands: str) -> None:
    _in_net(init, ["ip", "-batch", "-"], commands)


def _nft(init: int, rules: str) -> None:
    _in_net(init, ["nft", "-f", "-"], rules)


def _in_net(init: int, argv: list[str], text_in: str | None = None) -> str:
    """Only the network is entered, so that process ids in the command are the host's."""
    return processes.run(processes.enter(init, argv, only=["net"]), text_in=text_in)
