package pinboard

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

// unequalEvery is how often a node says that its settings keep it from serving.
const unequalEvery = 10 * time.Second

// unequal says in the log why a node whose settings are not the fleet's serves nothing.
// Its callers learn no more than that the store is of no use.
type unequal struct {
	mu   sync.Mutex
	said time.Time
}

// says reports whether an error is of that kind, and logs it now and then.
func (u *unequal) says(log *zap.Logger, err error) bool {
	why, ok := errors.AsType[*store.Unequal](err)
	if !ok {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := time.Now(); u.said.IsZero() || now.Sub(u.said) >= unequalEvery {
		u.said = now
		log.Error("this node's settings are not the fleet's: it places, registers and renews nothing", zap.Error(why))
	}
	return true
}
