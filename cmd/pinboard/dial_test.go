package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
)

// waiting is the first line of a server that waits for its Redis.
func waiting(t *testing.T, url string) (line string, entry struct{ Level, Msg, Do, Hint, Error string }) {
	t.Helper()
	cmd := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL="+url, "PORT=0")
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err = bufio.NewReader(log).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
	require.Equal(t, "waiting for Redis", entry.Msg)
	return line, entry
}

// It would wait for ever, and look as if Redis were away.
func TestWhatRedisAnswersToAWrongURLIsAnErrorThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	redis := redistest.New(t, redistest.Options{TCP: true})
	locked := redistest.New(t, redistest.Options{TCP: true})
	client := locked.Client(t)
	require.NoError(t, client.Do(t.Context(), client.B().Arbitrary("CONFIG", "SET", "requirepass", "planted-password").Build()).Error())
	for url, do := range map[string]string{
		"redis://" + redis.Addr() + "/9999":                  "REDIS_URL: name a database",
		"redis://" + redis.Addr() + "," + redis.Addr():       "REDIS_URL: several hosts are nodes of one Redis Cluster",
		"redis://" + redis.Addr() + "?master_set=main":       "REDIS_URL: with master_set all hosts are Sentinels",
		"redis://" + locked.Addr():                           "REDIS_URL: the server wants a password",
		"redis://:planted-another-one@" + locked.Addr():      "REDIS_URL: the server knows no such user, or another password",
		"redis://planted-user:planted@" + redis.Addr():       "REDIS_URL: the server knows no such user, or another password",
		"redis://:planted%2Fanother@" + locked.Addr() + "/1": "a / as %2F",
	} {
		line, entry := waiting(t, url)
		require.Equal(t, "error", entry.Level, url)
		require.Contains(t, entry.Do, do, url)
		require.NotContains(t, line, "planted")
		require.NotContains(t, line, "stacktrace")
	}
	_, entry := waiting(t, "rediss://"+redis.Addr()+"?dial_timeout=100ms")
	require.Contains(t, entry.Hint, "REDIS_URL: does the server speak TLS at this port?")
}

// To replace "a" wherever there is one shows it.
func TestAShortPasswordIsNotShownByWhatIsReplaced(t *testing.T) {
	t.Parallel()
	network := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connect: connection refused")}
	answer := errors.New("ERR what is abcd? I know p and abcdef")
	const hidden = "an error of the server, not shown: the password may be anywhere in it"
	for _, test := range []struct {
		err                error
		password, sentinel string
		want               string
	}{
		{network, "p", "", "dial tcp: connect: connection refused"},
		{network, "dial", "tcp:", "dial tcp: connect: connection refused"},
		{answer, "p", "", hidden},
		{answer, "abcdef", "z", hidden},
		{answer, "abcd", "", "ERR what is [secret]? I know p and [secret]ef"},
		{answer, "abcd", "abcdef", "ERR what is [secret]? I know p and [secret]"},
		{answer, "", "", "ERR what is abcd? I know p and abcdef"},
	} {
		option := rueidis.ClientOption{Password: test.password, Sentinel: rueidis.SentinelOption{Password: test.sentinel}}
		require.Equal(t, test.want, withoutPassword(test.err, option))
	}
}
