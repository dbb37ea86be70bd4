"""Which network addresses belong to the public internet. Pure: nothing is resolved here."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

NAT64 = IPv6Network("64:ff9b::/96")  # the last 32 bits are an IPv4 address

Address = IPv4Address | IPv6Address


def read_address(text: str) -> Address:
    """Return the address that packets to `text` reach: the IPv4 address inside a mapped, 6to4 or NAT64 one, and without
    an IPv6 zone. Raises ValueError if `text` is not an address."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_public(text: str) -> bool:
    """Whether `text` is an address of the public internet: not loopback, private, link-local, multicast or reserved."""
    address = read_address(text)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def is_loopback(host: str) -> bool:
    """Whether a host's name or address stands for this machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
