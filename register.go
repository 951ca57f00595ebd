package pinboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// takeoverDrain is how long the workers of another env have to wind down when a
// registration takes their place (protocol §7).
const takeoverDrain = 30 * time.Second

// register makes a session (protocol §2). The order of the checks is the
// protocol's: nothing is dialled or looked up before the claims allow it.
func (g *registry) register(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	reg, host, err := parseRegistration(c.body)
	if err != nil {
		return malformed(err)
	}
	c.body = nil // it may be large, and what follows may take a while
	if err := g.limiter.checkInstances(reg); err != nil {
		err = refuse(http.StatusBadRequest, err.Error()).limited(limitInstances)
		g.refused(c, reg, err)
		return err
	}
	if err := claimsCover(c.who, reg.Namespaces, host); err != nil {
		g.refused(c, reg, err)
		return err
	}
	unlock, err := g.clients.lock(ctx, reg.ClientID)
	if err != nil {
		return err
	}
	defer unlock()
	r, strangers := newSession(reg, c.who)
	addr, err := g.verify(ctx, reg, r)
	if err != nil {
		g.refused(c, reg, err)
		return err
	}
	if _, err := netip.ParseAddr(host); err != nil {
		r.BackendAddr = addr // the host is a name: this is what it stood for
	}
	if err := c.Context().Err(); err != nil {
		return err
	}
	// From here on the client's leaving changes nothing: it may ask again.
	recording, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline(ctx))
	defer cancel()
	// Others may take no placements any more a moment before this one does.
	settled := g.leases.activating(r.Bindings())
	defer settled()
	done, err := g.store.Register(recording, r)
	if err != nil {
		err = conflict(err)
		g.refused(c, reg, err)
		return err
	}
	heard := time.Now()
	g.leases.succeed(r.ClientID, r.Secret, r.SessionID)
	g.registered(ctx, &r, &done, len(strangers))
	drain := g.pace.told(done.Drain)
	return g.acknowledge(w, c, r, func() wire.Registered {
		return wire.Registered{
			SessionID: r.SessionID, ExpiresInMs: done.TTL.Milliseconds(),
			Draining: drain.Draining, DrainDeadline: drainDeadline(drain, time.Since(heard)),
			Duplicates: append(strangers, done.Duplicates...), Epochs: toldEpochs(done.Epochs),
		}
	})
}

// newSession is what the store is asked to record, and the instances that can't
// be rows of it.
func newSession(reg *wire.Register, who *passport.Identity) (store.Registration, []wire.Ref) {
	instances, strangers := splitInstances(reg)
	r := store.Registration{
		SessionID: rand.Text(), ClientID: reg.ClientID, Secret: reg.Secret, Namespaces: reg.Namespaces,
		AdvertiseURL: reg.AdvertiseURL, BackendHosts: who.BackendHosts(),
		Headroom: reg.Headroom, Draining: reg.Draining, Instances: instances,
		Hostname: reg.Hostname, Epoch: reg.Epoch, Env: reg.Env, Envs: envsOf(reg),
	}
	if reg.Takeover == wire.TakeoverWindDown {
		r.Takeover = takeoverDrain
	}
	return r, strangers
}

// registered logs and tells what a registration has done.
func (g *registry) registered(ctx context.Context, r *store.Registration, done *store.Registered, strangers int) {
	if len(done.Displaced)+len(done.Drained) > 0 {
		g.log.Warn("workers give way", zap.String("to", r.ClientID), zap.String("hostname", r.Hostname), zap.Int64("epoch", r.Epoch),
			zap.Strings("displaced", done.Displaced), zap.Strings("drained", done.Drained))
	}
	g.log.Info("worker registered", zap.String("client", r.ClientID), zap.String("session", r.SessionID),
		zap.String("url", r.AdvertiseURL), zap.String("hostname", r.Hostname), zap.Strings("namespaces", r.Namespaces),
		zap.Int("duplicates", strangers+len(done.Duplicates)))
	g.events.tell(store.Event{
		Kind: store.EventRegistered, Namespaces: r.Namespaces, Hostname: r.Hostname, ClientID: r.ClientID, SessionID: r.SessionID, Detail: r.AdvertiseURL,
	})
	g.tellOthers(ctx, store.EventDisplaced, done.Displaced, r.ClientID, nil)
	left := r.Takeover.Milliseconds()
	g.tellOthers(ctx, store.EventDrained, done.Drained, r.ClientID, &left)
}

// maxOthers bounds the sessions that are told of one by one.
const maxOthers = 100

// tellOthers tells what a registration did to other workers' sessions.
func (g *registry) tellOthers(ctx context.Context, kind store.Kind, sessions []string, by string, left *int64) {
	for _, id := range sessions[:min(len(sessions), maxOthers)] {
		s, err := g.leases.get(ctx, id)
		if err != nil {
			continue // it has ended
		}
		e := about(&s.Session, kind)
		e.By, e.DeadlineMs = by, left
		g.events.tell(e)
	}
}

func deadline(ctx context.Context) time.Time {
	end, _ := ctx.Deadline()
	return end
}

// parseRegistration reads the body and checks its fields. The advertise URL
// comes out normalised, with its host.
func parseRegistration(body []byte) (reg *wire.Register, host string, err error) {
	reg, err = wire.ParseRegister(body)
	if err != nil {
		return nil, "", err
	}
	if strings.ContainsFunc(reg.Secret.Reveal(), func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil, "", &wire.FieldError{Field: "secret", Reason: "must be printable ASCII without spaces: it is sent as a header"}
	}
	reg.AdvertiseURL, host, err = wire.ParseAdvertiseURL(reg.AdvertiseURL)
	if err != nil {
		return nil, "", &wire.FieldError{Field: "advertiseUrl", Reason: err.Error()}
	}
	return reg, host, nil
}

// envsOf returns the envs of the namespaces that are registered.
func envsOf(reg *wire.Register) map[string]string {
	envs := maps.Clone(reg.Envs)
	maps.DeleteFunc(envs, func(ns, _ string) bool { return !slices.Contains(reg.Namespaces, ns) })
	return envs
}

// errReservedHost is for who advertises the address that a server listens on,
// such as 0.0.0.0, under claims that allow everything.
var errReservedHost = refuse(http.StatusForbidden, "the advertise URL must have an address that pinboard can reach; its host is an unspecified, link-local, multicast or metadata address, outside the credential's claims unless a rule there names it")

// claimsCover returns a 403 unless the claims cover the namespaces and the
// advertise URL's host. It looks up no name.
func claimsCover(who *passport.Identity, namespaces []string, host string) error {
	if err := coversNamespaces(who, namespaces); err != nil {
		return err
	}
	// Rules that do not parse allow nothing.
	rules, err := passport.ParseBackendRules(who.BackendHosts())
	if err != nil || !rules.AllowsURLHost(host) {
		if addr, err := netip.ParseAddr(host); err == nil && passport.Reserved(addr) {
			return errReservedHost
		}
		return refuse(http.StatusForbidden, "the advertise URL's host is outside the credential's claims")
	}
	return nil
}

// claimsReach returns a 403 unless the claims still allow the address that a
// session's name stood for when it registered, "" for none.
func claimsReach(who *passport.Identity, pinned string) error {
	if pinned == "" {
		return nil
	}
	addr, err := netip.ParseAddr(pinned)
	if err != nil {
		return fmt.Errorf("read the record of a session: backend address: %w", err)
	}
	if rules, err := passport.ParseBackendRules(who.BackendHosts()); err != nil || !rules.AllowsDial(addr, "") {
		return errOutsideRules
	}
	return nil
}

// verify looks for conflicts and then probes, and returns the address that
// answered.
func (g *registry) verify(ctx context.Context, reg *wire.Register, r store.Registration) (addr string, err error) {
	checking, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := g.store.CheckRegister(checking, r); err != nil {
		return "", conflict(err)
	}
	return g.traces.ask(ctx, g.probe, probe{
		url: reg.AdvertiseURL, secret: reg.Secret, challenge: reg.Challenge, challengeValue: reg.ChallengeValue,
		rules: r.BackendHosts,
	})
}

// conflict turns what the store has against a registration into its answer.
func conflict(err error) error {
	switch {
	case errors.Is(err, store.ErrOtherSecret):
		return refuse(http.StatusConflict, "the clientId is live with another secret")
	case errors.Is(err, store.ErrLowerEpoch), errors.Is(err, store.ErrOtherEnv):
		return refuse(http.StatusConflict, err.Error()) // it names what the worker said, and its like
	case errors.Is(err, store.ErrOvertaken):
		return notNow("a later registration of the same clientId has won", time.Second)
	}
	return err
}

// refused logs why a worker could not register. What is no refusal is logged
// where it is answered.
func (g *registry) refused(c *registryCall, reg *wire.Register, err error) {
	if _, decided := errors.AsType[*refusal](err); decided && c.Context().Err() == nil {
		g.log.Warn("registration refused", zap.String("client", reg.ClientID), zap.String("url", reg.AdvertiseURL), zap.Error(err))
	}
}

// splitInstances returns the instances that the store may be asked for, and
// those that can't be rows of this session: the worker has to quit them. Each
// comes out once.
func splitInstances(reg *wire.Register) (rows map[string][]string, strangers []wire.Ref) {
	rows = map[string][]string{}
	for _, ns := range slices.Sorted(maps.Keys(reg.Instances)) {
		ids := reg.Instances[ns]
		slices.Sort(ids)
		ids = slices.Compact(ids)
		_, served := slices.BinarySearch(reg.Namespaces, ns)
		kept := ids[:0]
		for _, id := range ids {
			if served && wire.CheckID(id) == nil {
				kept = append(kept, id)
			} else {
				strangers = append(strangers, wire.Ref{Namespace: ns, ID: id})
			}
		}
		if len(kept) > 0 {
			rows[ns] = kept
		}
	}
	return rows, strangers
}

// acknowledge answers, and then lets the session take placements: not before
// the worker can know its session (protocol §2). A session whose answer could
// not be sent stays as it is, and lapses or is replaced.
func (g *registry) acknowledge(w http.ResponseWriter, c *registryCall, r store.Registration, answer func() wire.Registered) error {
	if err := c.Context().Err(); err != nil {
		return err
	}
	if err := deliver(w, answer()); err != nil {
		g.log.Info("registration not acknowledged: the worker has left", zap.String("client", r.ClientID), zap.Error(err))
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), storeTimeout)
	defer cancel()
	if err := g.store.Activate(ctx, r.SessionID); err != nil {
		// The worker's first beat does it too.
		g.log.Warn("session not activated yet", zap.String("client", r.ClientID), zap.Error(err))
	}
	g.holds.nudge(r.Namespaces)
	return nil
}
