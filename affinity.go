package pinboard

import (
	"errors"
	"net/http"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

// affinity is the affinity key of a request, once it was asked for. The zero
// affinity is not known.
type affinity struct {
	known bool
	key   string // "" for no preference
}

// errKeyNeeded: the id has no owner, and may only be placed by the affinity key.
var errKeyNeeded = errors.New("the affinity key is needed")

// affinity asks for the key, which the host may have to work for. It does that on the
// goroutine of the request (protocol §9).
func (a *ask) affinity() affinity {
	key, ok := a.key()
	if !ok {
		key = ""
	}
	return affinity{known: true, key: key}
}

// looksFirst reports whether the store is to be asked for the id's owner before the
// affinity key is needed. An id that this node knows is most likely placed. Where new
// ids count, those that have an owner do not. And some are not placed by a key.
func (p *placer) looksFirst(a *ask) bool {
	waits, _ := p.back.left()
	return waits > 0 || a.prefer != "" || p.counts(a) || p.routes.get(a.instance) != nil || p.gate.isShut()
}

// counts reports whether placing the id counts for its client's address.
func (p *placer) counts(a *ask) bool { return a.refused == nil && p.made.counts(a.site) }

// affinityKey calls the host's callback and contains its panics.
func (p *Pinboard) affinityKey(r *http.Request, c Client) (key string, ok bool) {
	defer func() {
		if fault := recover(); fault != nil {
			p.log.Error("Affinity.Key panicked; placing without a preference", zap.Any("panic", fault), zap.Stack("stack"))
			key, ok = "", false
		}
	}()
	return p.opts.Affinity.Key(r, c)
}

// rendezvous returns the session whose client has the highest weight for the
// key: the same on every node, and most keys keep theirs when others come and
// go (protocol §9). "" without candidates.
func rendezvous(key string, candidates []store.Candidate, refused *store.Refused) (sessionID string) {
	var best uint64
	for _, c := range candidates {
		if refused != nil && c.ClientID == refused.ClientID {
			continue
		}
		if w := weight(key, c.ClientID); sessionID == "" || w > best {
			best, sessionID = w, c.SessionID
		}
	}
	return sessionID
}

// weight hashes (FNV-1a) and then mixes (splitmix64), for FNV alone leaves
// similar texts with similar hashes. All nodes of a fleet must agree on it.
func weight(key, clientID string) uint64 {
	h := uint64(14695981039346656037)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211 // no UTF-8 text has this byte: a separator
	}
	add(key)
	add(clientID)
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}
