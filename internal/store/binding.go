package store

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Bind names the binding of a namespace under a host name: the two in a row,
// and without a host name the namespace itself. A namespace begins with a
// slash, and a host name has none.
func Bind(hostname, namespace string) string { return hostname + namespace }

// Unbind takes a binding's name apart.
func Unbind(binding string) (hostname, namespace string) {
	slash := max(0, strings.IndexByte(binding, '/'))
	return binding[:slash], binding[slash:]
}

// Bindings names the bindings of the namespaces, in their order.
func (r Registration) Bindings() []string { return bindings(r.Hostname, r.Namespaces) }

// EnvOf returns the env of one of the namespaces.
func (r Registration) EnvOf(namespace string) string { return cmp.Or(r.Envs[namespace], r.Env) }

// Bindings names the bindings of the namespaces, in their order.
func (s Session) Bindings() []string { return bindings(s.Hostname, s.Namespaces) }

func bindings(hostname string, namespaces []string) []string {
	all := make([]string, len(namespaces))
	for i, ns := range namespaces {
		all[i] = Bind(hostname, ns)
	}
	return all
}

// SupersededMemory is for how long a displaced session is remembered past the
// end of its lease.
const SupersededMemory = time.Hour

// Superseded says that a session was displaced, and by whom. It is an
// ErrNoSession, too.
type Superseded struct {
	ClientID string
	Epoch    int64
}

func (s *Superseded) Error() string {
	return fmt.Sprintf("displaced by the worker %s of epoch %d", s.ClientID, s.Epoch)
}

// Is makes errors.Is take it for ErrNoSession.
func (s *Superseded) Is(target error) bool { return target == ErrNoSession }

// LowerEpoch is the ErrLowerEpoch of a registration in a binding with workers
// of a higher epoch.
func LowerEpoch(binding string, own, theirs int64) error {
	return fmt.Errorf("%s has live workers of epoch %d, above %d: %w", binding, theirs, own, ErrLowerEpoch)
}

// OtherEnv is the ErrOtherEnv of a registration in a binding with workers of
// another env.
func OtherEnv(binding, own, theirs string) error {
	return fmt.Errorf("%s has live workers of env %q, not %q: %w", binding, theirs, own, ErrOtherEnv)
}
