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

	Epoch int64             `json:"epoch,omitempty"`
	Env   string            `json:"env,omitempty"`
	Envs  map[string]string `json:"envs,omitempty"`
}

// digest stands for a secret where scripts compare it.
func digest(secret wire.Secret) string {
	sum := secret.Sum()
	return hex.EncodeToString(sum[:])
}

// CheckRegister asks what the fleet has against a registration.
func (d *directory) CheckRegister(ctx context.Context, r store.Registration) error {
	fleet := d.keys.fleet()
	a := d.run(ctx, checkScript.with(
		[]string{fleet.client(r.ClientID), fleet.layout()}, string(fleet), digest(r.Secret), classes(&r), r.Takeover > 0, d.layout,
	))
	return refusal(&r, a.text(), a)
}

// registering is a registration that the fleet has admitted.
type registering struct {
	*store.Registration
	generation, lineage int64
	drain               store.Drain
	// sids are those of the client and secret, this one included; spaces are
	// the bindings in which sessions of the client may be recorded.
	sids   string
	spaces []string
	floor  int64 // the epoch above which a bucket without memory begins
	// others are the sessions of other clients that gave way.
	others []other
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
	registered.Displaced, registered.Drained = gaveWay(r.others)
	err = d.join(ctx, r)
	if err == nil {
		registered.Duplicates, registered.Epochs, err = d.reclaim(ctx, r)
	}
	if err == nil {
		err = d.retire(ctx, r)
	}
	if err == nil {
		registered.TTL, err = d.settle(ctx, r)
	}
	// A session that is left where it did join would keep nodes of the other layout out.
	_, unequal := errors.AsType[*store.Unequal](err)
	if unequal || errors.Is(err, store.ErrOvertaken) {
		err = errors.Join(err, d.leave(ctx, r.SessionID, r.Bindings()))
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
		Epoch: reg.Epoch, Env: reg.Env, Envs: reg.Envs,
	})
	if err != nil {
		return nil, fmt.Errorf("redis register: %w", err)
	}
	lapses, err := json.Marshal(store.LapsedEvent(reg))
	if err != nil {
		return nil, fmt.Errorf("redis register: %w", err)
	}
	fleet, url := d.keys.fleet(), urlDigest(reg.AdvertiseURL)
	c := registerScript.with(
		[]string{
			fleet.session(reg.SessionID), fleet.client(reg.ClientID), fleet.messages(reg.ClientID),
			fleet.url(url), fleet.live(), fleet.namespaces(), fleet.floor(), fleet.layout(),
		},
		string(fleet), reg.SessionID, reg.ClientID, digest(reg.Secret), d.lease, memory,
		reg.Headroom, reg.Draining, strings.Join(reg.Bindings(), "\n"), string(text), url, maxFormer,
		classes(reg), milliseconds(&reg.Takeover), store.SupersededMemory.Milliseconds(), maxGiveWay,
		string(lapses), d.layout,
	)
	var early []other
	for {
		a := d.run(ctx, c)
		outcome := a.text()
		if outcome == "more" {
			some := readOthers(a)
			if a.err != nil {
				return nil, a.err
			}
			if err := d.giveWay(ctx, some); err != nil {
				return nil, err
			}
			early = append(early, some...)
			continue
		}
		if err := refusal(reg, outcome, a); err != nil {
			return nil, err
		}
		r := &registering{
			Registration: reg, generation: a.int(), lineage: a.int(), drain: a.drain(), sids: a.text(), spaces: a.lines(),
			floor: a.int(),
		}
		r.others = append(early, readOthers(a)...)
		return r, a.err
	}
}

// join has the others give way in their buckets, and then records the session
// in its own.
func (d *directory) join(ctx context.Context, r *registering) error {
	if err := d.giveWay(ctx, r.others); err != nil {
		return err
	}
	var calls []call
	for _, b := range d.keys.buckets(r.Bindings()) {
		calls = append(calls, joinScript.with(
			[]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.session(r.SessionID)},
			string(b), r.SessionID, r.ClientID, r.generation, r.lineage, d.lease, r.Headroom, r.floor, d.layout,
		))
	}
	joins := len(calls)
	calls = append(calls, d.announce(r.Bindings(), d.lease)...)
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
// live sessions have, and the epochs of its own that registrations gave.
func (d *directory) reclaim(ctx context.Context, r *registering) (duplicates []wire.Ref, epochs store.Epochs, err error) {
	var refs []wire.Ref
	for _, ns := range r.Namespaces {
		for _, id := range r.Instances[ns] {
			refs = append(refs, wire.Ref{Namespace: ns, ID: id})
		}
	}
	groups := d.group(len(refs), func(i int) bucketKeys {
		return d.keys.of(store.Bind(r.Hostname, refs[i].Namespace), refs[i].ID)
	})
	calls := make([]call, len(groups))
	for i, g := range groups {
		args := []any{string(g.bucket), r.SessionID, r.ClientID, r.lineage, r.sids}
		for _, n := range g.items {
			args = append(args, refs[n].ID, d.keys.leaf(refs[n].ID))
		}
		calls[i] = reclaimScript.with([]string{g.bucket.meta(), g.bucket.session(r.SessionID), g.bucket.none()}, args...)
	}
	var taken []int // by others
	for _, some := range inParts(calls) {
		answers := d.runBulk(ctx, some)
		for i, a := range answers {
			if a.int() < 0 {
				return nil, nil, store.ErrOvertaken
			}
			for a.more() {
				n, epoch := int(a.int()), a.int()
				switch {
				case a.err != nil:
				case epoch == 0:
					taken = append(taken, groups[i].items[n])
				default:
					epochs.Set(refs[groups[i].items[n]], epoch)
				}
			}
		}
		if err := firstError(answers); err != nil {
			return nil, nil, err
		}
		groups = groups[len(some):]
	}
	slices.Sort(taken)
	for _, n := range taken {
		duplicates = append(duplicates, refs[n])
	}
	return duplicates, epochs, nil
}

// retire ends the client's former sessions in all buckets where one may be.
func (d *directory) retire(ctx context.Context, r *registering) error {
	var calls []call
	for _, b := range d.keys.buckets(r.spaces) {
		calls = append(calls, retireScript.with(
			[]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.none()},
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
		[]string{fleet.session(r.SessionID), fleet.client(r.ClientID), fleet.layout()},
		r.SessionID, strings.Join(r.Bindings(), "\n"), d.layout,
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

// leave ends a session in the buckets of some bindings.
func (d *directory) leave(ctx context.Context, sid string, bindings []string) error {
	var calls []call
	for _, b := range d.keys.buckets(bindings) {
		calls = append(calls, leaveScript.with([]string{b.meta(), b.sessions(), b.candidates(), b.none()}, string(b), sid))
	}
	return firstError(d.runAll(ctx, calls))
}
