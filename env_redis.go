package pinboard

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/internal/leak"
)

// topologyEvery is how often a node asks Sentinels or a Cluster who is a master,
// besides being told.
const topologyEvery = 5 * time.Second

// parseRedisURL does what rueidis.ParseURL does, and takes several hosts. Its
// errors never hold anything of the URL: of a password that is not encoded, any part
// may hold some.
func parseRedisURL(text string) (*rueidis.ClientOption, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "redis" && scheme != "rediss" {
		return nil, errors.New("must be memory:, redis://… or rediss://…")
	}
	option, err := parseRedis(scheme, rest)
	if err != nil && strings.LastIndexByte(rest, '@') > strings.IndexAny(rest, "/?#%") && strings.ContainsAny(rest, "/?#%") {
		err = fmt.Errorf("%w (in a user or password, write / as %%2F, ? as %%3F, # as %%23 and %% as %%25)", err)
	}
	return option, err
}

func parseRedis(scheme, rest string) (*rueidis.ClientOption, error) {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	userinfo, hosts := "", authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		leak.Secret(authority[:at])
		userinfo, hosts = authority[:at+1], authority[at+1:]
	}
	addrs := strings.Split(hosts, ",")
	u, err := url.Parse(scheme + "://" + userinfo + addrs[0] + tail)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("is not a well-formed URL with a host")
	}
	if strings.Contains(tail, "#") {
		return nil, errors.New("has a #, after which nothing means anything")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("has parameters that are not well-formed")
	}
	if err := checkParameters(query); err != nil {
		return nil, err
	}
	for _, addr := range addrs[1:] {
		if addr == "" {
			return nil, errors.New("has an empty host in its list")
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			addr = net.JoinHostPort(strings.Trim(addr, "[]"), "6379")
		}
		query.Add("addr", addr)
	}
	u.RawQuery = query.Encode()
	option, err := rueidis.ParseURL(u.String())
	if err != nil {
		return nil, errors.New("is not a URL that names a Redis: check port, database number and parameters")
	}
	leak.Secret(option.Password)
	if option.SelectDB < 0 {
		return nil, errors.New("has a database number below 0")
	}
	for _, addr := range option.InitAddress {
		_, port, _ := net.SplitHostPort(addr)
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, errors.New("has a port that is no number from 1 to 65535")
		}
	}
	sentinels := option.Sentinel.MasterSet != ""
	if option.TLSConfig != nil && (len(addrs) > 1 || sentinels) {
		option.TLSConfig.ServerName = "" // each node's certificate is for its own name
	}
	if sentinels { // they are the hosts that are named, and have users of their own
		option.Sentinel.TLSConfig, option.Sentinel.Dialer = option.TLSConfig, option.Dialer
		option.Sentinel.Username, option.Sentinel.Password = query.Get("sentinel_user"), query.Get("sentinel_password")
		leak.Secret(option.Sentinel.Password)
	}
	// A frozen connection is given up after this time; look-ups do not wait
	// for it, they have their own.
	option.ConnWriteTimeout = cmp.Or(option.ConnWriteTimeout, 5*time.Second)
	// Who misses the one message of a failover would otherwise go on writing to
	// a master that has been replaced.
	option.Sentinel.TopologyRefreshInterval = topologyEvery
	option.ClusterOption.ShardsRefreshInterval = topologyEvery
	return &option, nil
}

// redisParameters are those that rueidis.ParseURL knows, and ours.
var redisParameters = []string{
	"addr", "client_cache", "client_name", "db", "dial_timeout", "master_set", "max_retries", "protocol",
	"sentinel_password", "sentinel_user", "skip_verify", "write_timeout",
}

// checkParameters finds what would mean nothing, or could never work.
func checkParameters(query url.Values) error {
	for name := range query {
		if !slices.Contains(redisParameters, name) {
			return fmt.Errorf("has an unknown parameter; there are %s", strings.Join(redisParameters, ", "))
		}
	}
	switch {
	case query.Get("master_set") == "" && (query.Has("master_set") || query.Has("sentinel_user") || query.Has("sentinel_password")):
		return errors.New("has parameters for Sentinels, and no name in master_set")
	case query.Get("protocol") == "2" && query.Get("client_cache") != "0":
		return errors.New("has protocol=2, which needs client_cache=0")
	}
	return nil
}
