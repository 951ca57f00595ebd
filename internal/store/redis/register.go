package redis

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// maxFormer is how many sessions of a client and secret are remembered: their
// dead rows keep their epochs when reclaimed, and their successor is told. Live
// ones are known by their records, however many there are.
const maxFormer = 32

// errLapsed: a registration took longer than the lease that it granted.
var errLapsed = errors.New("the session lapsed while it was being registered")

// record is the part of a session that never changes and that scripts do not
// look into.
type record struct {
	Secret       string   `json:"secret"`
	AdvertiseURL string   `json:"advertiseUrl"`
	BackendHosts []string `json:"backendHosts,omitempty"`
	BackendAddr  string   `json:"backendAddr,omitempty"`
}

// digest stands for a secret where scripts compare it.
func digest(secret wire.Secret) string {
	sum := secret.Sum()
	return hex.EncodeToString(sum[:])
}

// CheckRegister asks whether the client is live with another secret.
func (d *directory) CheckRegister(ctx context.Context, clientID string, secret wire.Secret) error {
	fleet := d.keys.fleet()
	a := d.run(ctx, checkScript.with([]string{fleet.client(clientID)}, string(fleet), digest(secret)))
	if a.flag() {
		return store.ErrOtherSecret
	}
	return a.err
}

// registering is a registration that the fleet has admitted.
type registering struct {
	*store.Registration
	generation, lineage int64
	drain               store.Drain
	// sids are those of the client and secret, this one included; spaces are
	// the namespaces in which sessions of the client may be recorded.
	sids   string
	spaces []string
	// stopped is the session that lost its advertise URL; "" for none.
	stopped           string
	stoppedVersion    int64
	stoppedNamespaces []string
}

// Register goes through the steps that the package comment tells.
func (d *directory) Register(ctx context.Context, reg store.Registration) (store.Registered, error) {
	if reg.SessionID == "" || strings.ContainsAny(reg.SessionID, " \t\r\n\v\f") {
		return store.Registered{}, errors.New("redis: a session id is a word")
	}
	r, err := d.admit(ctx, &reg)
	if err != nil {
		return store.Registered{}, err
	}
	registered := store.Registered{Drain: r.drain}
	err = d.join(ctx, r)
	if err == nil {
		registered.Duplicates, err = d.reclaim(ctx, r)
	}
	if err == nil {
		err = d.retire(ctx, r)
	}
	if err == nil {
		registered.TTL, err = d.settle(ctx, r)
	}
	if errors.Is(err, store.ErrOvertaken) {
		err = errors.Join(err, d.leave(ctx, r.SessionID, r.Namespaces))
	}
	if err != nil {
		return store.Registered{}, err
	}
	return registered, nil
}

// admit records the session in the fleet.
func (d *directory) admit(ctx context.Context, reg *store.Registration) (*registering, error) {
	text, err := json.Marshal(record{
		Secret: reg.Secret.Reveal(), AdvertiseURL: reg.AdvertiseURL,
		BackendHosts: reg.BackendHosts, BackendAddr: reg.BackendAddr,
	})
	if err != nil {
		return nil, fmt.Errorf("redis register: %w", err)
	}
	fleet, url := d.keys.fleet(), urlDigest(reg.AdvertiseURL)
	a := d.run(ctx, registerScript.with(
		[]string{
			fleet.session(reg.SessionID), fleet.client(reg.ClientID), fleet.messages(reg.ClientID),
			fleet.url(url), fleet.live(), fleet.namespaces(),
		},
		string(fleet), reg.SessionID, reg.ClientID, digest(reg.Secret), d.lease, memory,
		reg.Headroom, reg.Draining, strings.Join(reg.Namespaces, "\n"), string(text), url, maxFormer,
	))
	switch outcome := a.text(); {
	case a.err != nil:
		return nil, a.err
	case outcome == "secret":
		return nil, store.ErrOtherSecret
	case outcome == "overtaken":
		return nil, store.ErrOvertaken
	}
	r := &registering{
		Registration: reg, generation: a.int(), lineage: a.int(), drain: a.drain(), sids: a.text(), spaces: a.lines(),
	}
	if a.more() {
		r.stopped, r.stoppedVersion, r.stoppedNamespaces = a.text(), a.int(), a.lines()
	}
	return r, a.err
}

// join records the session in its buckets, and stops the one that lost its
// advertise URL in that one's.
func (d *directory) join(ctx context.Context, r *registering) error {
	var calls []call
	for _, b := range d.keys.buckets(r.Namespaces) {
		calls = append(calls, joinScript.with(
			[]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.session(r.SessionID)},
			string(b), r.SessionID, r.ClientID, r.generation, r.lineage, d.lease, r.Headroom,
		))
	}
	joins := len(calls)
	for _, b := range d.keys.buckets(r.stoppedNamespaces) {
		stop := state{sid: r.stopped, version: r.stoppedVersion, stopped: true}
		calls = append(calls, stop.call(b))
	}
	overtaken := false
	answers := d.runAll(ctx, calls)
	for _, a := range answers[:joins] {
		overtaken = !a.flag() && a.err == nil || overtaken
	}
	if overtaken {
		return store.ErrOvertaken
	}
	return firstError(answers)
}

// reclaim makes the instances the session's own, and returns those that other
// live sessions have.
func (d *directory) reclaim(ctx context.Context, r *registering) (duplicates []wire.Ref, err error) {
	var refs []wire.Ref
	for _, ns := range r.Namespaces {
		for _, id := range r.Instances[ns] {
			refs = append(refs, wire.Ref{Namespace: ns, ID: id})
		}
	}
	groups := d.group(len(refs), func(i int) bucketKeys { return d.keys.of(refs[i].Namespace, refs[i].ID) })
	calls := make([]call, len(groups))
	for i, g := range groups {
		args := []any{string(g.bucket), r.SessionID, r.ClientID, r.lineage, r.sids}
		for _, n := range g.items {
			args = append(args, refs[n].ID, d.keys.leaf(refs[n].ID))
		}
		calls[i] = reclaimScript.with([]string{g.bucket.meta(), g.bucket.leaves(), g.bucket.session(r.SessionID)}, args...)
	}
	var taken []int // by others
	for _, some := range inParts(calls) {
		answers := d.runAll(ctx, some)
		for i, a := range answers {
			if a.int() < 0 {
				return nil, store.ErrOvertaken
			}
			for a.more() {
				if n := int(a.int()); a.err == nil {
					taken = append(taken, groups[i].items[n])
				}
			}
		}
		if err := firstError(answers); err != nil {
			return nil, err
		}
		groups = groups[len(some):]
	}
	slices.Sort(taken)
	for _, n := range taken {
		duplicates = append(duplicates, refs[n])
	}
	return duplicates, nil
}

// retire ends the client's former sessions in all buckets where one may be.
func (d *directory) retire(ctx context.Context, r *registering) error {
	var calls []call
	for _, b := range d.keys.buckets(r.spaces) {
		calls = append(calls, retireScript.with(
			[]string{b.meta(), b.sessions(), b.candidates(), b.clients()},
			string(b), r.SessionID, r.ClientID, r.generation,
		))
	}
	// A bucket that says no has seen a later registration: settle finds out.
	return firstError(d.runAll(ctx, calls))
}

// settle finds out whether the session is still the client's own.
func (d *directory) settle(ctx context.Context, r *registering) (left time.Duration, err error) {
	fleet := d.keys.fleet()
	a := d.run(ctx, settleScript.with(
		[]string{fleet.session(r.SessionID), fleet.client(r.ClientID)},
		r.SessionID, strings.Join(r.Namespaces, "\n"),
	))
	switch left := a.int(); left {
	case -1:
		return 0, store.ErrOvertaken
	case -2:
		return 0, errLapsed
	default:
		return time.Duration(left) * time.Millisecond, a.err
	}
}

// leave ends a session in the buckets of some namespaces.
func (d *directory) leave(ctx context.Context, sid string, namespaces []string) error {
	var calls []call
	for _, b := range d.keys.buckets(namespaces) {
		calls = append(calls, leaveScript.with([]string{b.meta(), b.sessions(), b.candidates()}, string(b), sid))
	}
	return firstError(d.runAll(ctx, calls))
}
