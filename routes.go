package pinboard

import (
	"sync"
	"time"
)

// maxRoutes bounds each of the two generations of remembered routes.
const maxRoutes = 50_000

// routeMemory remembers where ids were last found: for the time when the store
// does not answer, and to tell ids that this node has had before. It is a hint:
// whoever uses it must see that the owner's lease still runs. When the young
// generation is full it becomes the old one, and what was not used since is
// forgotten. The zero routeMemory is empty.
type routeMemory struct {
	mu         sync.Mutex
	young, old map[instance]*remembered
}

// remembered is a route, and what let it be recalled the last time. It is not changed.
type remembered struct {
	route
	by      *voucher // nil for nobody
	unbound string   // the host name that was not bound
}

func (m *routeMemory) put(i instance, rt route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(i, &remembered{route: rt})
}

// note is put; the caller holds the lock.
func (m *routeMemory) note(i instance, rt *remembered) {
	if m.young == nil {
		m.young = map[instance]*remembered{}
	}
	m.young[i] = rt
	delete(m.old, i)
	if len(m.young) >= maxRoutes {
		m.young, m.old = map[instance]*remembered{}, m.young
	}
}

// renewEvery is how much longer a route has to be good for to be noted anew.
const renewEvery = time.Second

// renew is put for what get has returned, unless it would change little.
func (m *routeMemory) renew(i instance, had *remembered, now remembered) {
	if had.by == now.by && had.unbound == now.unbound && had.same(now.route) && now.until.Sub(had.until) < renewEvery {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := now // here, so that only what is noted is allocated
	m.note(i, &kept)
}

// get returns where the id was last found, nil if it was not.
func (m *routeMemory) get(i instance) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	rt := m.young[i]
	if rt == nil {
		if rt = m.old[i]; rt != nil {
			m.note(i, rt)
		}
	}
	return rt
}

func (m *routeMemory) drop(i instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.young, i)
	delete(m.old, i)
}
