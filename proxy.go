package pinboard

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/hop"
	"github.com/pinboard-go/pinboard/internal/quota"
	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/passport"
)

// proxy is the data plane: it lets a request in, finds the id's owner and
// carries the request there and the answer back (protocol §§5, 6).
type proxy struct {
	p     *Pinboard
	pool  *upstream.Pool
	lates lates
	// lookout is for streams that go on apart from their requests.
	lookout hop.Lookout
	pulls   pulls
}

func newProxy(p *Pinboard, transport *http.Transport) *proxy {
	return &proxy{p: p, pool: newPool(transport, &p.opts.Limits), pulls: make(pulls, maxPulls)}
}

// closeIdle closes the connections to workers that carry nothing.
func (x *proxy) closeIdle() { x.pool.CloseIdle() }

// call is a request that was let in.
type call struct {
	ask
	// claims are for the attestation; the audience is still missing.
	claims  attest.Claims
	account attest.Account // of the claims, if they have one
	// counted is what the request counts for of the instance.
	counted counted
	from    netip.Prefix // the client's address, for which it counts
	// who carried a credential that must not reach a worker; nil for nobody.
	who *passport.Identity
}

// statusClientGone is for the host's logs: nobody is left to read it.
const statusClientGone = 499

var errClientGone = refuse(statusClientGone, "the client has gone")

// visit is a request as it comes in.
type visit struct {
	r *http.Request
	target
	sender
	site     netip.Prefix // what the client counts for
	reserved bool         // it has headers that only pinboard and its workers may use
}

// serve answers one request of the data plane. It panics with
// http.ErrAbortHandler to cut an answer short that has begun. What it returns is set
// if the request goes on, and counts, without its handler: the connection is not the
// server's any more then.
func (x *proxy) serve(w http.ResponseWriter, r *http.Request, t target) (apart *detached) {
	seen := x.p.observe(r)
	defer func() {
		if apart == nil {
			seen.end()
		}
	}()
	v := visit{r: r, target: t, sender: x.proxies().sender(r)}
	v.site = quota.Site(v.addr)
	share, err := x.enter(w, &v)
	if err != nil {
		seen.refused(err)
		x.p.turnAway(w, r, err)
		return nil
	}
	defer func() {
		if apart == nil {
			x.p.limiter.leave(share)
		}
	}()
	return x.entered(&exchange{x: x, w: w, r: r, seen: seen, rc: *http.NewResponseController(w)}, &v, share)
}

// entered goes on with a request that counts for its client's address. It is apart from
// serve for the sake of the defers, which are slow where there are many.
func (x *proxy) entered(e *exchange, v *visit, share *quota.Share) (apart *detached) {
	c := &e.call
	c.from = v.site
	e.trail = x.p.traces.enter()
	err := x.admit(c, v)
	e.seen.asked(c.instance)
	if err == nil {
		if c.counted, err = x.enterID(e.r.Context(), &c.ask, v.site); err == nil {
			defer func() {
				if apart == nil {
					x.p.limiter.leaveID(c.counted)
				}
			}()
		}
	}
	e.trail.begin(v, c, err)
	defer e.trail.end()
	if err != nil {
		x.deny(e, err)
		return nil
	}
	e.prepare(v)
	defer e.release()
	if apart = e.run(); apart != nil {
		apart.begin(share, c.counted)
	}
	return apart
}

// deny answers a request that was not let in, or needs no more than that.
func (x *proxy) deny(e *exchange, err error) {
	if err == errPreflight {
		e.seen.answered(http.StatusNoContent)
		leaveRest(e.w, e.r)
		allowPreflight(e.w, e.r)
		return
	}
	e.seen.refused(err)
	x.turnAway(e.w, e.r, e.call.namespace, err)
}

func (x *proxy) proxies() proxies { return x.p.opts.TrustedProxies }

// enter counts a request, and returns a refusal for one that is too large or one
// too many.
func (x *proxy) enter(w http.ResponseWriter, v *visit) (share *quota.Share, err error) {
	if v.reserved, err = x.p.limiter.checkHeader(v.r); err != nil {
		return nil, err
	}
	if err := x.p.limiter.boundBody(w, v.r); err != nil {
		return nil, err
	}
	return x.p.limiter.enter(v.site)
}

// enterID counts a request by its instance: by the binding, for clients choose
// what host name they ask.
func (x *proxy) enterID(ctx context.Context, a *ask, site netip.Prefix) (c counted, err error) {
	c, err = x.p.limiter.enterID(x.p.placer.pick(*a).instance, site)
	if err != nil && x.p.placer.learn(ctx, *a) {
		c, err = x.p.limiter.enterID(x.p.placer.pick(*a).instance, site)
	}
	return c, err
}

// refuse answers in place of a worker, and lets a page that the namespace trusts
// read that.
func (x *proxy) refuse(w http.ResponseWriter, r *http.Request, namespace string, err error) {
	x.allow(w, r, namespace)
	x.p.writeRefusal(w, r, err)
}

// turnAway is refuse for what goes nowhere.
func (x *proxy) turnAway(w http.ResponseWriter, r *http.Request, namespace string, err error) {
	x.allow(w, r, namespace)
	x.p.turnAway(w, r, err)
}

func (x *proxy) allow(w http.ResponseWriter, r *http.Request, namespace string) {
	if namespace != "" && x.trusted(namespace, r) {
		allowOrigin(w, r)
	}
}

// gone answers a request whose context has ended: the client has left or, if
// that was a deadline, the host's patience has.
func gone(r *http.Request) error {
	if errors.Is(r.Context().Err(), context.DeadlineExceeded) {
		return notNow("out of time", time.Second)
	}
	return errClientGone
}

// admit reads which instance is asked for and on whose behalf, and returns a
// refusal for whom it is not open. The call of a refusal names no more than the
// instance.
func (x *proxy) admit(c *call, v *visit) error {
	r := v.r
	if r.Method == http.MethodConnect {
		return refuse(http.StatusNotImplemented, "CONNECT is not for an instance")
	}
	host, err := wellFormed(r)
	if err != nil {
		return err
	}
	inst, err := v.instance()
	if err != nil {
		return err
	}
	c.instance = inst
	seen := r
	if _, own := x.p.opts.Passport.(*passport.Standard); v.reserved || !own { // which reads no body
		seen = withoutReserved(r, v.reserved)
	}
	// Also on a cluster call: a static token never reaches a worker.
	who, err := x.p.opts.Passport.Identify(r.Context(), seen)
	if err != nil {
		if r.Context().Err() != nil {
			return gone(r)
		}
		return x.p.notIdentified(err)
	}
	c.who, c.host = who, host
	if v.reserved && isClusterCall(r.Header) {
		claims, session, err := x.clusterCaller(r.Context(), r.Header)
		if err != nil {
			return err
		}
		c.claims, c.prefer = claims, session.ID
		c.key = func() (string, bool) { return "", false } // the preference is made
		return nil
	}
	if err := x.p.opts.Passport.Admit(r.Context(), inst.namespace, who); err != nil {
		if errors.Is(err, passport.ErrUnauthenticated) && isPreflight(r) && x.trusted(inst.namespace, r) {
			return errPreflight
		}
		return notAdmitted(err)
	}
	if err := x.checkOrigin(inst.namespace, r, who); err != nil {
		return err
	}
	if who != nil {
		c.account = attest.Account{Subject: who.Subject, Scopes: who.Scopes, Claims: who.Claims}
		c.claims.Account = &c.account
	}
	c.site = v.site
	addr, t, reserved := v.addr, v.target, v.reserved
	c.key = func() (string, bool) {
		return x.p.affinityKey(t.original(withoutReserved(r, reserved)), Client{Addr: addr, Identity: who})
	}
	return nil
}

func notAdmitted(err error) error {
	switch {
	case errors.Is(err, passport.ErrUnauthenticated):
		return &refusal{status: http.StatusUnauthorized, message: passport.ErrUnauthenticated.Error(), challenge: true}
	case errors.Is(err, passport.ErrForbidden):
		return refuse(http.StatusForbidden, passport.ErrForbidden.Error())
	}
	return err
}

// debug logs what may happen on every request.
func (x *proxy) debug(message string, c *call, owner *lease, more ...zap.Field) {
	x.write(zap.DebugLevel, message, c, owner, more)
}

// info logs what operators want to know of a single request.
func (x *proxy) info(message string, c *call, owner *lease, more ...zap.Field) {
	x.write(zap.InfoLevel, message, c, owner, more)
}

// write names the instance and its owner, but no path, query or header of the
// client's.
func (x *proxy) write(level zapcore.Level, message string, c *call, owner *lease, more []zap.Field) {
	if entry := x.p.log.Check(level, message); entry != nil {
		entry.Write(append(more, zap.String("namespace", c.namespace), zap.String("id", c.id),
			zap.String("client", owner.ClientID))...)
	}
}
