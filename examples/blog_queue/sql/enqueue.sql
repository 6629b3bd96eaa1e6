INSERT INTO jobs (payload) VALUES ($1::text)
