package redis

import (
	"context"
	"crypto/tls"
	"hash/maphash"
	"net"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// NewClient is rueidis.NewClient. Of what the client is told when keys change its
// directories hear, too, so that they need not ask its cache whether a row is still in
// there; that they do with any other client, and with one of a cluster, of a server with replicas, or
// with an OnInvalidations of its own. What dials, if not the client, is DialCtxFn.
func NewClient(option rueidis.ClientOption) (rueidis.Client, error) {
	if option.OnInvalidations != nil || option.Standalone.EnableRedirect || len(option.Standalone.ReplicaAddress) > 0 {
		return rueidis.NewClient(option)
	}
	h := new(heard)
	option.OnInvalidations, option.DialCtxFn = h.told, h.dialing(option)
	client, err := rueidis.NewClient(option)
	if err != nil || client.Mode() != rueidis.ClientModeStandalone {
		// A cluster's client may come to ask another connection for a key than the one
		// that would tell of it.
		return client, err
	}
	return &hearing{client, h}, nil
}

// hearing is a client that counts what it is told of.
type hearing struct {
	rueidis.Client
	heard *heard
}

// heard counts the changes that a client was told of. A key that was read through the
// client's cache is in there, unchanged, while its count stays what it was before: the
// client takes out of the cache what has changed, and then the count goes up.
type heard struct {
	counts [4096]atomic.Uint64 // several keys share one
}

// seed is of the hashes that say where something is counted or remembered.
var seed = maphash.MakeSeed()

// of returns the count of a key.
func (h *heard) of(key string) *atomic.Uint64 {
	return &h.counts[maphash.String(seed, key)%uint64(len(h.counts))]
}

// dialing returns what dials as option says. A connection that takes another one's place
// knows nothing of what that one was to be told of, and may be there before the client
// says that the other one has ended.
func (h *heard) dialing(option rueidis.ClientOption) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(ctx context.Context, dst string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		h.all()
		switch {
		case option.DialCtxFn != nil:
			return option.DialCtxFn(ctx, dst, dialer, config)
		case config != nil:
			over := tls.Dialer{NetDialer: dialer, Config: config}
			return over.DialContext(ctx, "tcp", dst)
		}
		return dialer.DialContext(ctx, "tcp", dst)
	}
}

// told is an OnInvalidations: nil is for all keys, as when a connection has ended.
func (h *heard) told(changed []rueidis.RedisMessage) {
	if changed == nil {
		h.all()
		return
	}
	for _, m := range changed {
		key, err := m.ToString()
		if err != nil {
			h.all()
			return
		}
		h.of(key).Add(1)
	}
}

func (h *heard) all() {
	for i := range h.counts {
		h.counts[i].Add(1)
	}
}
