package pinboard

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// proxies are the addresses whose forwarding headers are believed.
type proxies []netip.Prefix

func (p proxies) trust(addr netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
}

// peer is the other end of the connection, the zero Addr if it has no address,
// as on a unix socket.
func peer(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

// sender is who sent a request.
type sender struct {
	peer netip.Addr // the other end of the connection
	addr netip.Addr // the client: see clientAddr
}

func (p proxies) sender(r *http.Request) sender {
	s := sender{peer: peer(r)}
	s.addr = p.clientAddr(s.peer, r)
	return s
}

// clientAddr is the connection's peer or, where that is a trusted proxy, the
// right-most address in X-Forwarded-For that is not one (protocol §9). All
// header lines count, empty entries are skipped, and an entry that is no
// address ends the walk: what is left of it could be anybody's invention.
func (p proxies) clientAddr(peer netip.Addr, r *http.Request) netip.Addr {
	addr := peer
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		entries := strings.Split(lines[i], ",")
		for j := len(entries) - 1; j >= 0; j-- {
			entry := strings.Trim(entries[j], " \t")
			if entry == "" {
				continue
			}
			if !addr.IsValid() || !p.trust(addr) {
				return addr
			}
			next, ok := forwardedAddr(entry)
			if !ok {
				return addr
			}
			addr = next
		}
	}
	return addr
}

// forwardedAddr reads one entry: an address, as some proxies write it with a
// port or in brackets.
func forwardedAddr(entry string) (netip.Addr, bool) {
	plain, opened := strings.CutPrefix(entry, "[")
	plain, closed := strings.CutSuffix(plain, "]")
	if addr, err := netip.ParseAddr(plain); err == nil && opened == closed {
		return addr.Unmap().WithZone(""), true
	}
	if ap, err := netip.ParseAddrPort(entry); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	return netip.Addr{}, false
}
